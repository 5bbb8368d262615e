// HTTP client: queries with ETags, the event stream, and actions.

const kept = new Map();
const KEEP = 32;

/** Error of a request. `status` 0: no response. */
export class RequestError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Runs a query. An unchanged result is not sent again and is the same object. */
export async function ask(path, signal) {
  const known = kept.get(path);
  const headers = known ? { "If-None-Match": known.tag } : {};
  let response;
  try {
    response = await fetch(`/api/${path}`, { headers, signal, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError(0, "The job does not respond.");
  }
  if (response.status === 304 && known) return known.value;
  if (!response.ok) throw new RequestError(response.status, await reason(response));
  const value = await response.json();
  const tag = response.headers.get("ETag");
  kept.delete(path);
  if (tag) {
    kept.set(path, { tag, value });
    if (kept.size > KEEP) kept.delete(kept.keys().next().value);
  }
  return value;
}

async function reason(response) {
  try {
    return (await response.json()).error ?? response.statusText;
  } catch {
    return response.statusText || `status ${response.status}`;
  }
}

/** Requests an action. The header proves that it is not a form of another site. */
export async function act(path, body = {}) {
  let response;
  try {
    response = await fetch(`/api/${path}`, {
      method: "POST",
      credentials: "same-origin",
      headers: { "Content-Type": "application/json", "X-Rollway": "1" },
      body: JSON.stringify(body),
    });
  } catch {
    throw new RequestError(0, "The job does not respond: nothing was changed.");
  }
  if (!response.ok) throw new RequestError(response.status, await reason(response));
  return response.json();
}

/**
 * Subscribes to changes. `onMessage(message)` gets every message, `onState(state)` one of "open",
 * "closed", "refused". `watch` names the parts; `since()` is the time of the last known sample.
 * Returns a function that unsubscribes.
 */
export function follow(watch, since, onMessage, onState) {
  let source = null;
  let timer = 0;
  let wait = 500;
  let over = false;
  const open = () => {
    const known = since();
    const from = known ? `&since=${known}` : "";
    source = new EventSource(`/api/events?watch=${watch.join(",")}${from}`);
    source.onopen = () => {
      wait = 500;
      onState("open");
    };
    source.onmessage = (event) => onMessage(JSON.parse(event.data));
    source.onerror = () => {
      source.close();
      if (over) return;
      onState("closed");
      timer = setTimeout(again, wait);
      wait = Math.min(10000, wait * 2);
    };
  };
  const again = async () => {
    // An event source has no error status; a query has.
    try {
      await ask("job");
    } catch (error) {
      if (error.status === 401) return onState("refused");
    }
    if (!over) open();
  };
  open();
  return () => {
    over = true;
    clearTimeout(timer);
    source?.close();
  };
}
