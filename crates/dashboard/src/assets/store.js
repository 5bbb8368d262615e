// Shared state of the pages: job and overview, updated by the event stream.

import { follow } from "./api.js";
import { here } from "./format.js";

/** Maximum number of samples. */
const POINTS = 600;

export class Store {
  job = null;
  overview = null;
  connection = "opening";
  /** Number of stuck runners. */
  stuck = 0;
  /** Number of received messages. */
  messages = 0;
  #listeners = [];
  #skew = 0;
  #watched = null;
  #stop = null;

  listen(listener) {
    this.#listeners.push(listener);
  }

  /** Fetches job and overview. The event stream retries after an error. */
  async start(ask) {
    try {
      const [job, overview] = await Promise.all([ask("job"), ask("overview")]);
      this.#apply({ job, overview });
    } catch (error) {
      this.#setConnection(error.status === 401 ? "refused" : "closed");
    }
  }

  /** Returns seconds since 1970 by the job's clock. */
  now() {
    return here() + this.#skew;
  }

  /** Subscribes to these parts, beside job and overview. */
  watch(parts) {
    const wanted = parts.join(",");
    if (this.#watched === wanted) return;
    this.#watched = wanted;
    this.#stop?.();
    const since = () => this.overview?.samples?.at(-1)?.at;
    this.#stop = follow(parts, since, (message) => {
      this.messages += 1;
      this.#apply(message);
    }, (state) => this.#setConnection(state));
  }

  #setConnection(state) {
    if (this.connection === state) return;
    const before = this.connection;
    this.connection = state;
    if (before !== "opening" || state !== "open") this.#notify({ connection: state });
  }

  #apply(message) {
    const change = { changed: message.changed ?? [] };
    this.stuck = message.stuck ?? this.stuck;
    const waited = this.overview?.wait?.reason;
    if (message.job) {
      this.job = message.job;
      this.#skew = message.job.live ? message.job.now - here() : 0;
      change.job = true;
    }
    if (message.overview) {
      change.alarm = this.#newAlarm(message.overview);
      this.overview = this.#merged(message.overview);
      change.overview = true;
      const { wait } = this.overview;
      // The sentence has times, which change all the time.
      if (wait && wait.reason !== waited) change.wait = wait.message;
    }
    this.#notify(change);
  }

  /** Appends the new samples of a message. */
  #merged(overview) {
    const known = this.overview?.samples;
    if (!known) return overview;
    // Unchanged parts are not sent.
    const { rewards = this.overview.rewards, evals = this.overview.evals } = overview;
    if (typeof overview.since !== "number") return { ...overview, rewards, evals };
    const last = known.at(-1)?.at ?? 0;
    const all = known.concat(overview.samples.filter((sample) => sample.at > last));
    return { ...overview, rewards, evals, samples: all.length > POINTS ? thinned(all) : all };
  }

  /** Returns the message of a new alarm. */
  #newAlarm(overview) {
    if (!this.overview) return null;
    const problems = new Set(this.overview.servers?.problems);
    const unusable = (overview.servers?.problems ?? []).find((one) => !problems.has(one));
    if (unusable && problems.size === 0) return unusable;
    const known = new Set((this.overview.alarms ?? []).map((alarm) => alarm.at + alarm.kind));
    const fresh = (overview.alarms ?? []).filter((alarm) =>
      alarm.raised && !known.has(alarm.at + alarm.kind));
    return fresh.at(-1)?.message ?? null;
  }

  #notify(change) {
    for (const listener of this.#listeners) listener(change);
  }
}

/** Removes every second sample of the older half; counts are cumulative, so nothing is lost. */
function thinned(samples) {
  const half = samples.length >> 1;
  return samples.filter((_, at) => at >= half || at % 2 === 0);
}
