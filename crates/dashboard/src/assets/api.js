// Talks to the job: questions with ETags, the stream of changes, and actions.

const kept = new Map();
const KEEP = 32;

/** Why a question was not answered. `status` 0: nobody was there. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Asks. What has not changed since it was asked last is not sent again, and is the same object. */
export async function ask(path, signal) {
  const known = kept.get(path);
  const headers = known ? { "If-None-Match": known.tag } : {};
  let answer;
  try {
    answer = await fetch(`/api/${path}`, { headers, signal, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The job does not answer.");
  }
  if (answer.status === 304 && known) return known.value;
  if (!answer.ok) throw new Refused(answer.status, await reason(answer));
  const value = await answer.json();
  const tag = answer.headers.get("ETag");
  kept.delete(path);
  if (tag) {
    kept.set(path, { tag, value });
    if (kept.size > KEEP) kept.delete(kept.keys().next().value);
  }
  return value;
}

async function reason(answer) {
  try {
    return (await answer.json()).error ?? answer.statusText;
  } catch {
    return answer.statusText || `status ${answer.status}`;
  }
}

/** Acts. The header tells the server that no form of another site sends this. */
export async function act(path, body = {}) {
  let answer;
  try {
    answer = await fetch(`/api/${path}`, {
      method: "POST",
      credentials: "same-origin",
      headers: { "Content-Type": "application/json", "X-Rollway": "1" },
      body: JSON.stringify(body),
    });
  } catch {
    throw new Refused(0, "The job does not answer: nothing was done.");
  }
  if (!answer.ok) throw new Refused(answer.status, await reason(answer));
  return answer.json();
}

/**
 * Follows what changes. `told(message)` gets every message, `stands(state)` one of "open",
 * "closed", "refused". Watches only what `watch` names; `since()` is the last beat that is known.
 * Returns a function that ends it.
 */
export function follow(watch, since, told, stands) {
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
      stands("open");
    };
    source.onmessage = (event) => told(JSON.parse(event.data));
    source.onerror = () => {
      source.close();
      if (over) return;
      stands("closed");
      timer = setTimeout(again, wait);
      wait = Math.min(10000, wait * 2);
    };
  };
  const again = async () => {
    // An event source does not say why it was refused; a question does.
    try {
      await ask("job");
    } catch (error) {
      if (error.status === 401) return stands("refused");
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
