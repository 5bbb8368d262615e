// A trajectory: messages, and tokens coloured by probability, training mask or model version.

import { h, put, say, set, unique } from "./dom.js";
import { count, isNumber, percent, score } from "./format.js";

/** Tokens that are drawn at first. */
const FIRST = 3000;

export function trajectory(one, at, of) {
  const title = unique("experience");
  const views = new Map();
  const messages = Array.isArray(one.messages) ? one.messages : null;
  if (messages?.length) views.set("Messages", () => chat(messages));
  else if (one.prompt_text || one.response_text) views.set("Text", () => texts(one));
  if (one.tokens?.length) views.set("Tokens", () => tokens(one));
  const extra = Object.entries({ ...(plain(one.metrics)), ...(plain(one.info)) });
  if (extra.length) views.set("Metrics", () => numbers(extra));
  const place = h("div", { class: "what" });
  const tabs = [...views].map(([name, make]) => h("button", { type: "button", class: "chip",
    "aria-pressed": "false", onclick: () => choose(name, make) }, name));
  function choose(name, make) {
    for (const tab of tabs) set(tab, "aria-pressed", tab.textContent === name);
    put(place, make());
  }
  const first = views.entries().next().value;
  if (first) choose(...first);
  const trained = (one.mask ?? []).filter(Boolean).length;
  const answer = (one.tokens?.length ?? 0) - (one.prompt_length ?? 0);
  return h("section", { class: "panel experience", "aria-labelledby": title },
    h("div", { class: "chart-head" },
      h("h3", { id: title }, of > 1 ? `Experience ${at + 1} of ${of}` : "Experience",
        h("small", null, `reward ${score(one.reward)} · ${count(one.prompt_length)} + ` +
          `${count(answer)} tokens, ${count(trained)} trained`)),
      h("div", { class: "chips", role: "group", "aria-label": "Show" }, tabs)),
    one.truncated ? h("p", { class: "soft" }, "Truncated: this is the " +
      "beginning.") : null,
    place);
}

const plain = (value) => (value && typeof value === "object" && !Array.isArray(value) ? value : {});

function chat(messages) {
  return h("ol", { class: "chat" }, messages.map((message) => h("li", {
    class: `from-${message.role}` },
    h("span", { class: "role" }, message.role ?? "?"),
    h("div", { class: "said" }, content(message.content),
      (message.tool_calls ?? []).map((call) => h("pre", { class: "call" },
        `${call.function?.name ?? "tool"}(${call.function?.arguments ?? ""})`))))));
}

function content(value) {
  if (typeof value === "string") return value;
  if (Array.isArray(value)) return value.map((part) => part.text ?? JSON.stringify(part)).join("");
  return value ? JSON.stringify(value, null, 2) : "";
}

function texts(one) {
  return h("ol", { class: "chat" },
    [["prompt", one.prompt_text], ["answer", one.response_text]].map(([role, said]) => said
      && h("li", { class: `from-${role === "answer" ? "assistant" : "user"}` },
        h("span", { class: "role" }, role), h("div", { class: "said" }, said))));
}

function numbers(extra) {
  return h("dl", { class: "facts" }, extra.map(([name, value]) => h("div", null,
    h("dt", null, name),
    h("dd", null, isNumber(value) ? score(value) : JSON.stringify(value)))));
}

const WAYS = [
  ["log-prob", "Probability of each token: the stronger the colour, the less likely."],
  ["mask", "Tokens that are trained on. The others are crossed out."],
  ["version", "Model version of each token."],
  ["plain", "No colours."],
];

function tokens(one) {
  const about = h("p", { class: "soft" });
  const readout = h("p", { class: "token-readout", role: "status" },
    "Point at a token, or use ← →.");
  const legend = h("p", { class: "scale" });
  const box = h("div", { class: "tokens", tabindex: "0", role: "group",
    "aria-label": "Tokens; left and right arrows go from one to the next" });
  const state = { way: "log-prob", all: (one.tokens.length <= FIRST), at: -1 };
  const ways = WAYS.filter(([way]) => (way !== "version" || one.versions)
    && (way !== "log-prob" || one.logprobs));
  state.way = ways[0][0];
  const chips = ways.map(([way]) => h("button", { type: "button", class: "chip", onclick: () => {
    state.way = way;
    draw();
  } }, way));
  const more = h("button", { type: "button", class: "quiet", onclick: () => {
    state.all = true;
    draw();
  } }, `Show all ${count(one.tokens.length)}`);

  const of = (index) => {
    const answer = index - one.prompt_length;
    return {
      prompt: answer < 0, id: one.tokens[index], text: one.texts?.[index],
      logprob: answer < 0 ? null : one.logprobs?.[answer],
      trained: answer >= 0 && one.mask?.[answer] !== false,
      version: answer < 0 ? null : one.versions?.[answer],
    };
  };

  function draw() {
    for (const chip of chips) set(chip, "aria-pressed", chip.textContent === state.way);
    say(about, WAYS.find(([way]) => way === state.way)[1]);
    const many = state.all ? one.tokens.length : FIRST;
    const versions = [...new Set((one.versions ?? []).filter(isNumber))].sort((a, b) => a - b);
    put(box, one.tokens.slice(0, many).map((id, index) => {
      const token = of(index);
      const shown = token.text ?? String(id);
      const span = h("span", { class: look(token, state.way, versions), "data-at": index },
        shown.replaceAll("\n", "↵\n") + (typeof token.text === "string" ? "" : " "));
      return span;
    }));
    put(legend, scale(state.way, versions));
    more.hidden = state.all;
  }

  function show(index) {
    state.at = Math.max(0, Math.min(one.tokens.length - 1, index));
    box.querySelector(".here")?.classList.remove("here");
    const span = box.children[state.at];
    span?.classList.add("here");
    const token = of(state.at);
    const said = [`${state.at}: ${JSON.stringify(token.text ?? "")} (${token.id})`,
      token.prompt ? "prompt" : token.trained ? "trained" : "not trained"];
    if (isNumber(token.logprob)) {
      said.push(`log-prob ${token.logprob.toFixed(3)} (${percent(Math.exp(token.logprob))})`);
    }
    if (isNumber(token.version)) said.push(`version ${token.version}`);
    else if (!token.prompt && one.versions) said.push("version unknown");
    say(readout, said.join(" · "));
    return span;
  }

  box.addEventListener("pointerover", (event) => {
    const at = event.target.dataset?.at;
    if (at !== undefined) show(Number(at));
  });
  box.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    show(state.at + by)?.scrollIntoView({ block: "nearest" });
  });
  draw();
  return [h("div", { class: "chart-head" }, h("div", { class: "chips", role: "group",
    "aria-label": "Colour tokens by" }, chips), legend), about, box, readout, more];
}

/** Seven shades; the line below has exact numbers. */
const shade = (logprob) => Math.max(0, Math.min(6, Math.floor(-logprob * 1.6)));

function look(token, way, versions) {
  if (token.prompt) return "t prompt";
  const parts = ["t"];
  if (way === "log-prob" && isNumber(token.logprob)) parts.push(`p${shade(token.logprob)}`);
  if (way === "mask") parts.push(token.trained ? "trained" : "untrained");
  if (way === "version") {
    const at = versions.indexOf(token.version);
    parts.push(at < 0 ? "unknown" : `c${(at % 5) + 1}`);
  }
  return parts.join(" ");
}

function scale(way, versions) {
  if (way === "log-prob") {
    return ["likely ", ...[0, 1, 2, 3, 4, 5, 6].map((at) => h("i", { class: `t p${at}` }, " ")),
      " unlikely"];
  }
  if (way === "mask") {
    return [h("i", { class: "t trained" }, "trained"), h("i", { class: "t untrained" }, "not")];
  }
  if (way === "version") {
    return versions.slice(0, 5).map((version, at) => [h("i", { class: `t c${at + 1}` },
      ` ${version} `), " "]);
  }
  return [];
}
