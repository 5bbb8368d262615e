// A real job whose model never answers: the runs that hang are seen, found, and ended from a page.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { after, before, test } from "node:test";

import { browse, need, open } from "./world.mjs";

const ROOT = fileURLToPath(new URL("../../../../", import.meta.url));

/** Starts the command, and returns it with the first thing that `find` finds in its lines. */
async function start(args, stream, find) {
  const child = spawn(need("ROLLWAY_BIN"), args, { cwd: ROOT, stdio: ["ignore", "pipe", "pipe"] });
  const said = [];
  child[stream === "stdout" ? "stderr" : "stdout"].resume();
  for await (const line of createInterface({ input: child[stream] })) {
    said.push(line);
    const found = find(line);
    if (found) {
      child[stream].resume();
      return [child, found];
    }
  }
  throw new Error(`rollway ${args.join(" ")} ended:\n${said.join("\n")}`);
}

async function end(child) {
  if (!child || child.exitCode !== null) return;
  const ended = once(child, "exit");
  child.kill("SIGKILL");
  await ended;
}

let folder;
let server;
let job;
let url;
let browser;
before(async () => {
  folder = await mkdtemp(`${tmpdir()}/rollway-pages-`);
  let model;
  [server, model] = await start(["mock-server", "openai", "--port", "0",
    "--first-token-seconds", "100000"], "stdout", (line) => line.match(/http:\S+/)?.[0]);
  [job] = await start(["run", "examples/external.yaml", `checkpoint_root_dir=${folder}`,
    `explorer.rollout_model.base_url=${model}/v1`, "explorer.runner_per_model=3", "--log", "json"],
  "stderr", (line) => line.includes("dashboard: http:"));
  // The token of the address is printed on a terminal only.
  const file = await readFile(`${folder}/examples/external/dashboard.json`, "utf8");
  const address = JSON.parse(file);
  url = `${address.url}/?token=${address.token}`;
  browser = await browse();
});
after(async () => {
  await browser?.close();
  await end(job);
  await end(server);
  if (folder) await rm(folder, { recursive: true });
});

test("three runs that hang are seen where they hang, and one is found and cancelled", async () => {
  const page = await open(browser, url, "/runners");
  const busy = page.locator("tbody tr:not(.gap)", { hasText: /busy|stuck/ });
  await page.waitForFunction(() => [...document.querySelectorAll("tbody tr:not(.gap)")]
    .filter((row) => /busy|stuck/.test(row.textContent) && /\d+ · \d+/.test(row.textContent))
    .length === 3);
  assert.equal(await busy.count(), 3);
  const run = await busy.first().locator("a").textContent();
  const [batch, task, number] = run.split(" · ");

  await page.keyboard.press("6");
  await page.getByRole("searchbox").fill(`${batch}/${task}/${number}`);
  await page.getByText("1 run", { exact: true }).waitFor();
  await page.getByRole("link", { name: run }).click();
  await page.getByRole("rowheader", { name: /^Call 1/ }).waitFor();
  await page.getByRole("button", { name: "Cancel this run" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Cancel the run" }).click();
  await page.locator("h1 .badge", { hasText: "cancelled" }).waitFor();
  assert.deepEqual(page.wrong, []);
  await page.context().close();
});
