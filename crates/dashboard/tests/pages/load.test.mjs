// A job with 100,000 tasks in which 1,000 things happen every second: pages do a bounded amount of
// work, however much happens. Asserted on what is done, not on how long it takes.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { browse, demo, drawn, open } from "./world.mjs";

let job;
let browser;
before(async () => {
  [job, browser] = await Promise.all([demo("--tasks", "100000", "--rate", "1000"), browse()]);
});
after(async () => {
  await browser?.close();
  await job?.close();
});

test("the table of all runs draws only what can be seen", async () => {
  const page = await open(browser, job.url, "/runs");
  await drawn(page, "runs");
  const total = Number((await page.locator(".total").textContent()).replace(/\D/g, ""));
  assert.ok(total > 380_000, `${total} runs`);
  const nodes = () => page.evaluate(() => document.querySelectorAll("*").length);
  const before = await nodes();
  assert.ok(before < 1600, `${before} elements`);
  // Each once: what is shown is also refreshed, as often as the duration of the test permits.
  const asked = new Set();
  page.on("request", (request) => {
    if (request.url().includes("/api/runs?")) asked.add(request.url());
  });
  for (const share of [0.25, 0.5, 0.75, 1]) {
    await page.locator(".scroller").evaluate((box, to) => {
      box.scrollTop = to * box.scrollHeight;
    }, share);
    // What stood there before is not what is waited for.
    await page.waitForFunction((least) => {
      const rows = [...document.querySelectorAll("tbody tr:not(.gap)")];
      return rows.length && Number(rows.at(-1).getAttribute("aria-rowindex")) >= least
        && rows.every((row) => row.querySelector(".badge"));
    }, Math.floor(share * total));
  }
  assert.ok(await nodes() < 1600, "scrolling leaves nothing behind");
  const last = await page.locator("tbody tr:not(.gap)").last().getAttribute("aria-rowindex");
  assert.equal(Number(last), total + 1);
  assert.ok(asked.size < 40, `${asked.size} requests`);
  assert.deepEqual(page.wrong, []);
  await page.context().close();
});

test("the overview keeps up: few messages, few elements, whatever happens", async () => {
  const page = await open(browser, job.url);
  await drawn(page, "overview");
  const client = await page.context().newCDPSession(page);
  await client.send("Network.enable");
  const at = [];
  let bytes = 0;
  client.on("Network.eventSourceMessageReceived", (message) => {
    at.push(message.timestamp);
    bytes += message.data.length;
  });
  const done = () => page.evaluate(() => document.querySelector(".tiles").textContent);
  const first = await done();
  while (at.length < 8) await page.waitForTimeout(200);
  assert.notEqual(await done(), first);
  const gaps = at.slice(1).map((time, index) => time - at[index]);
  // Messages may be held up and then come together, but never more than two a second on average.
  const mean = gaps.reduce((sum, gap) => sum + gap, 0) / gaps.length;
  assert.ok(mean > 0.4, `a message every ${mean} s`);
  assert.ok(bytes / at.length < 12_000, `${bytes / at.length} bytes a message`);
  assert.ok(await page.evaluate(() => document.querySelectorAll("*").length) < 1200);
  assert.deepEqual(page.wrong, []);
  await page.context().close();
});

test("the timeline of a long job draws what fits", async () => {
  const page = await open(browser, job.url, "/timeline");
  await drawn(page, "timeline");
  const spans = await page.locator(".lanes .span").count();
  assert.ok(spans < 300, `${spans} bars`);
  await page.keyboard.press("0");
  await page.waitForFunction(() => document.querySelectorAll(".lanes .span").length > 100);
  assert.ok(await page.locator(".lanes .span").count() < 1600);
  await page.context().close();
});

test("tasks, servers and metrics of a large job draw a bounded number of elements", async () => {
  for (const [name, path, limit] of [["tasks", "/tasks/100", 1600], ["servers", "/servers", 600],
    ["metrics", "/series", 1600], ["task", "/tasks/100/3", 600]]) {
    const page = await open(browser, job.url, path);
    await drawn(page, name);
    const elements = await page.evaluate(() => document.querySelectorAll("*").length);
    assert.ok(elements < limit, `${name} has ${elements} elements`);
    assert.deepEqual(page.wrong, []);
    await page.context().close();
  }
});
