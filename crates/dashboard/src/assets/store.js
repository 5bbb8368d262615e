// What every page knows: the job and the overview, kept in step with the stream of changes.

import { follow } from "./api.js";
import { here } from "./format.js";

/** As many points as a curve has. */
const POINTS = 600;

export class Store {
  job = null;
  overview = null;
  stands = "opening";
  /** Runners that seem stuck. */
  stuck = 0;
  /** How many messages came. */
  messages = 0;
  #listeners = [];
  #skew = 0;
  #watched = null;
  #stop = null;

  listen(listener) {
    this.#listeners.push(listener);
  }

  /** Asks for what everybody needs. What goes wrong is shown, and tried again by the stream. */
  async start(ask) {
    try {
      const [job, overview] = await Promise.all([ask("job"), ask("overview")]);
      this.#take({ job, overview });
    } catch (error) {
      this.#stand(error.status === 401 ? "refused" : "closed");
    }
  }

  /** Seconds since 1970 by the job's clock. */
  now() {
    return here() + this.#skew;
  }

  /** Watches these parts from now on, beside job and overview. */
  watch(parts) {
    const wanted = parts.join(",");
    if (this.#watched === wanted) return;
    this.#watched = wanted;
    this.#stop?.();
    const since = () => this.overview?.beats?.at(-1)?.at;
    this.#stop = follow(parts, since, (message) => {
      this.messages += 1;
      this.#take(message);
    }, (state) => this.#stand(state));
  }

  #stand(state) {
    if (this.stands === state) return;
    const before = this.stands;
    this.stands = state;
    if (before !== "opening" || state !== "open") this.#tell({ stands: state });
  }

  #take(message) {
    const what = { changed: message.changed ?? [] };
    this.stuck = message.stuck ?? this.stuck;
    if (message.job) {
      this.job = message.job;
      this.#skew = message.job.live ? message.job.now - here() : 0;
      what.job = true;
    }
    if (message.overview) {
      what.alarm = this.#news(message.overview);
      this.overview = this.#merged(message.overview);
      what.overview = true;
    }
    this.#tell(what);
  }

  /** Beats come once: the message has those that are new. */
  #merged(overview) {
    const known = this.overview?.beats;
    if (!known) return overview;
    // What did not change was not sent.
    const { rewards = this.overview.rewards, evals = this.overview.evals } = overview;
    if (typeof overview.since !== "number") return { ...overview, rewards, evals };
    const last = known.at(-1)?.at ?? 0;
    const beats = known.concat(overview.beats.filter((beat) => beat.at > last));
    return { ...overview, rewards, evals, beats: beats.length > POINTS ? thinned(beats) : beats };
  }

  /** The words of an alarm that was not there before. */
  #news(overview) {
    if (!this.overview) return null;
    const known = new Set((this.overview.alarms ?? []).map((alarm) => alarm.at + alarm.kind));
    const fresh = (overview.alarms ?? []).filter((alarm) =>
      alarm.raised && !known.has(alarm.at + alarm.kind));
    return fresh.at(-1)?.words ?? null;
  }

  #tell(what) {
    for (const listener of this.#listeners) listener(what);
  }
}

/** Every second of the older half goes; beats count from the beginning, so nothing is lost. */
function thinned(beats) {
  const half = beats.length >> 1;
  return beats.filter((_, at) => at >= half || at % 2 === 0);
}
