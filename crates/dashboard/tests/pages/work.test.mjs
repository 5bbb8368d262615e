// Workflows of users: find, inspect and cancel a run; stuck runners; navigation.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { browse, demo, drawn, open } from "./world.mjs";

let browser;
before(async () => {
  browser = await browse();
});
after(() => browser?.close());

test("a run is found, inspected and cancelled", async () => {
  const job = await demo("--tasks", "5000");
  const page = await open(browser, job.url, "/runs");
  await drawn(page, "runs");
  await page.getByLabel("State").selectOption("running");
  await page.getByText("64 runs", { exact: true }).waitFor();
  assert.match(page.url(), /state=running/);
  await page.waitForFunction(() => [...document.querySelectorAll("tbody .badge")].every((badge) =>
    badge.textContent === "running"));
  const row = page.locator("tbody tr:not(.gap)").first();
  const name = await row.locator("a").textContent();
  await row.locator("td").nth(2).click();
  await page.getByRole("heading", { name: /^Run \d/ }).waitFor();
  await page.getByRole("rowheader", { name: /^Attempt 1/ }).waitFor();
  await page.getByRole("rowheader", { name: /^Call 1/ }).waitFor();

  // Nothing happens before it is confirmed.
  await page.getByRole("button", { name: "Cancel this run" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Keep it running" }).click();
  await page.getByRole("dialog").waitFor({ state: "detached" });
  assert.equal(await page.locator("h1 .badge").textContent(), "running");
  await page.getByRole("button", { name: "Cancel this run" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Cancel the run" }).click();
  await page.locator("h1 .badge", { hasText: "cancelled" }).waitFor();
  await page.getByRole("button", { name: "Cancel this run" }).waitFor({ state: "hidden" });
  await page.goto(new URL("/runs?state=running", job.url).href);
  await page.getByText("63 runs", { exact: true }).waitFor();
  assert.equal(await page.getByRole("link", { name, exact: true }).count(), 0);
  assert.deepEqual(page.wrong, []);
  await page.context().close();
  await job.close();
});

test("a trajectory tells what is trained, how likely it was, and by which version", async () => {
  const job = await demo("--tasks", "70000", "--still");
  const page = await open(browser, job.url, "/runs/120/7/1");
  await drawn(page, "run");
  await page.getByText("calculator({").waitFor();
  await page.getByRole("button", { name: "Tokens" }).click();
  const token = (text) => page.locator(".tokens span").getByText(text, { exact: true }).first();
  assert.match(await token("From").getAttribute("class"), /\bp[0-6]\b/);
  await page.getByRole("button", { name: "mask" }).click();
  assert.match(await token("From").getAttribute("class"), /\btrained\b/);
  assert.equal(await page.locator(".tokens .untrained").allTextContents().then((all) =>
    all.join("")), "225");
  await page.getByRole("button", { name: "version" }).click();
  await page.locator(".tokens span.c2").first().hover();
  await page.getByText(/version 120$/).waitFor();
  await page.context().close();
  await job.close();
});

test("stuck runners stand first, with the stage where they hang", async () => {
  const job = await demo("--tasks", "5000");
  const page = await open(browser, job.url, "/runners");
  await drawn(page, "runners");
  const rows = page.locator("tbody tr:not(.gap)");
  for (const at of [0, 1, 2]) {
    assert.match(await rows.nth(at).textContent(), /stuck.*waits for the model.*for 2\d min/);
  }
  assert.doesNotMatch(await rows.nth(3).textContent(), /stuck/);
  await page.getByRole("button", { name: "stuck 3" }).click();
  await page.waitForFunction(() => document.querySelectorAll("tbody tr:not(.gap)").length === 3);
  await page.getByRole("link", { name: "Runners 3" }).waitFor();
  await rows.first().locator("a").click();
  await page.getByText(/^Now waits for the model for 2\d min/).waitFor();
  await page.context().close();
  await job.close();
});

test("a batch is aborted after a question, and says so", async () => {
  const job = await demo("--tasks", "5000");
  const page = await open(browser, job.url, "/batches");
  await drawn(page, "batches");
  const row = page.locator("tbody tr", { hasText: "running" }).first();
  const name = await row.locator("a").textContent();
  await row.getByRole("button", { name: `Abort batch ${name}` }).click();
  const dialog = page.getByRole("dialog");
  assert.match(await dialog.textContent(), /of its runs have not ended and will be cancelled/);
  await dialog.getByLabel("Keep the results of its finished runs").uncheck();
  const sent = page.waitForRequest((request) => request.method() === "POST");
  await dialog.getByRole("button", { name: "Abort the batch" }).click();
  assert.deepEqual((await sent).postDataJSON(), { keep_partial: false });
  const aborted = page.locator("tbody tr", { hasText: "aborted" });
  await aborted.waitFor();
  assert.equal(await aborted.locator("a").textContent(), name);
  assert.equal(await aborted.getByRole("button").count(), 0);
  await page.context().close();
  await job.close();
});

test("a job that goes away is said to be gone, and found again when it is back", async () => {
  let job = await demo("--tasks", "2000", "--token", "a-token-of-a-test");
  const { host } = new URL(job.url);
  const page = await open(browser, job.url);
  await drawn(page, "overview");
  await job.kill();
  await page.getByText("Disconnected.").waitFor();
  job = await demo("--tasks", "2000", "--token", "a-token-of-a-test", "--listen", host);
  await page.getByText("Disconnected.").waitFor({ state: "detached" });
  await job.kill();
  await page.getByText("Disconnected.").waitFor();
  job = await demo("--tasks", "2000", "--token", "another-token-now", "--listen", host);
  await page.getByText("The token is invalid").waitFor();
  await page.context().close();
  await job.close();
});

test("empty, finished and failed jobs show their state", async () => {
  for (const [state, words] of [["finished", "The job is finished. This is its record."],
    ["failed", "the trainer did not answer for 600 s"]]) {
    const job = await demo("--tasks", "2000", "--state", state);
    const page = await open(browser, job.url, "/batches");
    await page.getByText(words).waitFor();
    await drawn(page, "batches");
    assert.equal(await page.getByRole("button", { name: /^Abort/ }).count(), 0);
    await page.context().close();
    await job.close();
  }
  const job = await demo("--state", "empty");
  const page = await open(browser, job.url);
  for (const [path, words] of [["/", "No step has ended"],
    ["/runs", "No run was submitted"],
    ["/timeline", "No step has begun"], ["/batches", "No batch was submitted"],
    ["/runners", "No runner"], ["/bias", "No run has ended yet"], ["/nowhere", "Unknown page"],
    ["/servers", "No server is known"], ["/series", "No step has ended yet"],
    ["/tasks/1", "Unknown batch 1"], ["/tasks/1/2", "Unknown task 2 of batch 1"],
    ["/runs/1/2/3", "Unknown run 1 · 2 · 3"]]) {
    await page.goto(new URL(path, job.url).href);
    await page.getByText(words).first().waitFor();
  }
  await page.context().close();
  await job.close();
});
