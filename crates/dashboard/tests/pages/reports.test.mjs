// Servers, waits, failures, tasks, metrics and configuration.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { browse, demo, drawn, open } from "./world.mjs";

let browser;
let job;
before(async () => {
  [browser, job] = await Promise.all([browse(), demo("--tasks", "70000", "--still")]);
});
after(async () => {
  await browser?.close();
  await job?.close();
});

test("servers show state, load and errors, unusable ones first", async () => {
  const page = await open(browser, job.url, "/servers");
  await drawn(page, "servers");
  const rows = page.locator("tbody tr:not(.gap)");
  assert.match(await rows.first().textContent(), /node-3:8000unhealthy.*26unreachable/);
  await page.getByText(/^3 of 4 usable · \d+ in flight · 0 queued · 1\dk tokens\/s$/).waitFor();
  const hidden = await page.locator(".scroller").first()
    .evaluate((table) => table.scrollHeight - table.clientHeight);
  assert.equal(hidden, 0, "a table that fits has no scrollbar");
  await page.getByRole("link", { name: "Servers 1" }).waitFor();
  const detail = page.getByRole("region", { name: "Selected server" });
  assert.match(await detail.textContent(), /node-3:8000 unhealthy/);
  await detail.getByText("HTTP 503").waitFor();
  await detail.getByText("tcp connect error: Connection refused").waitFor();
  await page.getByRole("button", { name: "node-4:8000" }).focus();
  await page.keyboard.press("Enter");
  await detail.getByText("No error.").first().waitFor();
  assert.match(await detail.textContent(), /node-4:8000 updating/);
  assert.deepEqual(page.wrong, []);
  await page.context().close();
});

test("the last known state of servers is shown after the end of the job", async () => {
  const ended = await demo("--tasks", "2000", "--state", "finished");
  const page = await open(browser, ended.url, "/servers");
  await page.getByText(/^3 of 4 usable · last known state, \d\d:\d\d:\d\d$/).waitFor();
  await page.goto(ended.url);
  await drawn(page, "overview");
  assert.equal(await page.getByText("No usable server").count(), 0);
  await page.context().close();
  await ended.close();
});

test("the overview says what the job waits for, and that no server is usable", async () => {
  const waiting = await demo("--tasks", "5000", "--state", "waiting");
  const page = await open(browser, waiting.url);
  const client = await page.context().newCDPSession(page);
  await client.send("Network.enable");
  const wait = page.locator(".wait");
  await wait.waitFor();
  // The stream of changes keeps the sentence.
  await new Promise((done) => client.once("Network.eventSourceMessageReceived", done));
  await page.evaluate(() => new Promise(requestAnimationFrame));
  assert.match(await wait.textContent(),
    /^Batch 3 waits for 1 of 64 runs: batch 3 task 7 run 2, in stage `sandbox`; since/);
  const alarm = page.locator(".alarms li.bad");
  assert.match(await alarm.textContent(),
    /No server of model qwen3-4b is usable: http:\/\/node-1:8000 is unhealthy .*; and 1 more\./);
  await wait.getByRole("link", { name: "Open the run" }).click();
  await page.getByRole("heading", { name: /^Run 2/ }).waitFor();
  await page.goBack();
  await alarm.getByRole("link").click();
  await drawn(page, "servers");
  assert.deepEqual(page.wrong, []);
  await page.context().close();
  await waiting.close();
});

test("failures are grouped by message, with a link to the newest run", async () => {
  const page = await open(browser, job.url);
  await drawn(page, "overview");
  const groups = page.locator(".failures li");
  assert.equal(await groups.count(), 4);
  assert.match(await groups.first().textContent(),
    /× *workflow *KeyError: 'answer' in tools\/calculator.py, line 41/);
  const numbers = await groups.locator("b").allTextContents();
  const counts = numbers.map((text) => Number(text.replace(/\D/g, "")));
  assert.deepEqual(counts, counts.toSorted((a, b) => b - a));
  await groups.first().getByRole("link").click();
  await page.locator("h1 .badge", { hasText: "failed" }).waitFor();
  await page.locator("p.message").getByText("KeyError: 'answer'").waitFor();
  await page.context().close();
});

test("a run that succeeded after a retry does not open with the earlier error", async () => {
  const page = await open(browser, job.url, "/runs?state=succeeded&sort=attempts&desc=true");
  await drawn(page, "runs");
  await page.locator("tbody tr:not(.gap) a").first().click();
  await page.getByRole("rowheader", { name: /^Attempt 2/ }).waitFor();
  assert.equal(await page.locator("h1 .badge").textContent(), "succeeded");
  assert.equal(await page.locator("p.message").count(), 0);
  assert.ok(await page.locator(".message-row").count() > 0);
  await page.context().close();
});

test("runs of a task are compared, from a run and from a batch", async () => {
  const page = await open(browser, job.url, "/runs/120/7/1");
  await drawn(page, "run");
  await page.getByRole("link", { name: "Compare the runs of this task" }).click();
  await drawn(page, "task");
  assert.equal(new URL(page.url()).pathname, "/tasks/120/7");
  assert.equal(await page.locator(".group tbody tr").count(), 4);
  await page.getByText(/^The first 3 messages are the same in all \d runs; message 4 is/).waitFor();
  assert.match(await page.locator(".same").first().textContent(), /That is 225 minutes/);
  await page.goto(new URL("/batches", job.url).href);
  await drawn(page, "batches");
  await page.getByRole("link", { name: "120", exact: true }).click();
  await drawn(page, "tasks");
  await page.getByRole("button", { name: "Spread" }).click();
  await page.waitForFunction(() => location.search.includes("sort=spread"));
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await drawn(page, "task");
  assert.deepEqual(page.wrong, []);
  await page.context().close();
});

test("runs are filtered by their reward", async () => {
  const page = await open(browser, job.url, "/runs?batch=120");
  await drawn(page, "runs");
  await page.getByRole("columnheader", { name: "Batch · task · run" }).waitFor();
  await page.getByLabel("Min reward").fill("0.1");
  await page.getByLabel("Max reward").fill("0.3");
  await page.waitForFunction(() => location.search.includes("max_reward=0.3"));
  await page.waitForFunction(() => {
    const cells = [...document.querySelectorAll("tbody tr:not(.gap):not(.waits) td:nth-child(3)")];
    return cells.length > 5 && cells.every((cell) => {
      const reward = Number(cell.textContent);
      return reward >= 0.1 && reward <= 0.3;
    });
  });
  await page.getByLabel("Min reward").fill("much");
  await page.locator("input[aria-invalid]").waitFor();
  assert.match(page.url(), /min_reward=0.1/);
  assert.deepEqual(page.wrong, []);
  await page.context().close();
});

test("a search that goes on is continued, with a range of rewards", async () => {
  const page = await open(browser, job.url, "/runs?batch=120&min_reward=0");
  await drawn(page, "runs");
  await page.getByRole("searchbox").fill("120/7/");
  await page.getByText(/^[1-4] runs?$/).waitFor();
  const links = page.locator("tbody tr:not(.gap):not(.waits) td:first-child a");
  for (const text of await links.allTextContents()) assert.match(text, /^120 · 7 · \d$/);
  await page.getByRole("searchbox").fill("no such text");
  await page.getByText("No run matches.").waitFor();
  assert.deepEqual(page.wrong, []);
  await page.context().close();
});

test("metrics of workflows and trainer are curves that can be searched", async () => {
  const page = await open(browser, job.url, "/series");
  await drawn(page, "metrics");
  const curve = page.getByRole("img", { name: /^rollout\/tool_calls\. From \d/ });
  await curve.waitFor();
  assert.equal(await curve.locator(".band").count(), 1);
  await page.getByRole("button", { name: /^trainer 5/ }).click();
  await page.getByText("5 metrics", { exact: true }).waitFor();
  await page.getByRole("img", { name: /^trainer\/loss/ }).waitFor();
  assert.equal(await page.locator(".chart").count(), 5);
  await page.keyboard.press("/");
  await page.keyboard.type("entropy");
  await page.getByText("1 metric", { exact: true }).waitFor();
  assert.match(page.url(), /text=entropy&group=trainer/);
  await page.getByText("All 1 name").click();
  await page.getByRole("rowheader", { name: "trainer/entropy" }).waitFor();
  assert.deepEqual(page.wrong, []);
  await page.context().close();
});

test("the configuration shows what is set, and no secret", async () => {
  const page = await open(browser, job.url, "/config");
  await drawn(page, "config");
  await page.getByText("11 of 17 keys set").waitFor();
  await page.getByRole("row", { name: "rollout_model.api_key (hidden)" }).waitFor();
  assert.equal(await page.getByRole("row", { name: /sync_timeout/ }).count(), 0);
  await page.getByRole("button", { name: "all keys" }).click();
  await page.getByRole("row", { name: "sync_timeout 3600" }).waitFor();
  await page.getByLabel("Search").fill("checkpoint");
  await page.getByRole("row", { name: "sync_method checkpoint" }).waitFor();
  assert.equal(await page.locator("table.config tbody tr").count(), 1);
  assert.deepEqual(page.wrong, []);
  await page.context().close();
});

test("a batch whose runs all failed is not green", async () => {
  const page = await open(browser, job.url);
  const states = await page.evaluate(async () => {
    const { batchState, look } = await import("/assets/components.js");
    const of = (state, runs) => look(batchState({ state, runs }));
    return [of("finalized", { succeeded: 0, failed: 8 }), of("finalized", { succeeded: 1,
      failed: 7 }), of("running", { succeeded: 0, failed: 8 })];
  });
  assert.deepEqual(states, ["bad", "good", "busy"]);
  await page.context().close();
});
