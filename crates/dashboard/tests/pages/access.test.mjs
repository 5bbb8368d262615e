// Authentication and accessibility: keyboard, screen reader, colours.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, test } from "node:test";

import { AXE, PAGES, browse, demo, drawn, open } from "./world.mjs";

let job;
let browser;
before(async () => {
  [job, browser] = await Promise.all([demo("--tasks", "70000", "--still"), browse()]);
});
after(async () => {
  await browser?.close();
  await job?.close();
});

test("the token becomes a cookie, and the address is clean", async () => {
  const page = await open(browser, job.url);
  assert.equal(new URL(page.url()).search, "");
  const [cookie] = await page.context().cookies();
  assert.equal(cookie.httpOnly, true);
  assert.equal(cookie.sameSite, "Strict");
  await page.goto(new URL("/runs", job.url).href);
  await drawn(page, "runs");
  assert.deepEqual(page.wrong, []);
  await page.context().close();
});

test("without the token there is a page that says where to find it", async () => {
  const context = await browser.newContext();
  const page = await context.newPage();
  const answer = await page.goto(new URL("/runs", job.url).href);
  assert.equal(answer.status(), 401);
  await page.getByRole("heading", { name: "This dashboard needs its token" }).waitFor();
  await page.getByLabel("Token").fill(new URL(job.url).searchParams.get("token"));
  await page.getByRole("button", { name: "Open" }).click();
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  await context.close();
});

test("no page has a barrier, in light and in dark, on a laptop and a phone", async (t) => {
  const axe = await readFile(AXE, "utf8");
  for (const [colorScheme, viewport] of [
    ["light", { width: 1360, height: 860 }], ["dark", { width: 390, height: 844 }]]) {
    // The policy of the pages lets no script in but their own: what looks at them is let past it.
    const page = await open(browser, job.url, "/", { colorScheme, viewport, bypassCSP: true });
    for (const [name, path] of Object.entries(PAGES)) {
      await page.goto(new URL(path, job.url).href);
      await drawn(page, name);
      await page.evaluate(axe);
      const { violations } = await page.evaluate(() => globalThis.axe.run({
        runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] }));
      const found = violations.map((one) =>
        `${one.id}: ${one.nodes.map((node) => node.html).slice(0, 3).join(" | ")}`);
      assert.deepEqual(found, [], `${name} in ${colorScheme}`);
      const [wide, window] = await page.evaluate(() =>
        [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
      assert.ok(wide <= window, `${name} scrolls sideways: ${wide} of ${window}`);
      t.diagnostic(`${name} in ${colorScheme}: no barrier`);
    }
    assert.deepEqual(page.wrong, []);
    await page.context().close();
  }
});

test("everything can be reached with the keyboard alone", async () => {
  const page = await open(browser, job.url);
  await drawn(page, "overview");
  await page.keyboard.press("Tab");
  const focused = await page.evaluate(() => document.activeElement.textContent);
  assert.equal(focused, "Skip to the content");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.id), "main");
  await page.keyboard.press("?");
  await page.getByRole("dialog", { name: "Keys" }).waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "detached" });
  await page.keyboard.press("6");
  await drawn(page, "runs");
  await page.keyboard.press("/");
  await page.keyboard.type("120/7/1");
  await page.getByRole("link", { name: "120 · 7 · 1" }).waitFor();
  await page.getByText("1 run", { exact: true }).waitFor();
  await page.keyboard.press("Escape");
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Run 1" }).waitFor();
  assert.equal(new URL(page.url()).pathname, "/runs/120/7/1");
  const tokens = page.getByRole("button", { name: "Tokens" });
  await tokens.focus();
  await page.keyboard.press("Enter");
  await page.keyboard.press("Tab");
  const box = page.getByRole("group", { name: /^Tokens/ });
  await box.focus();
  await page.keyboard.press("ArrowRight");
  await page.getByText(/^0: "<" /).waitFor();
  await page.goBack();
  await drawn(page, "runs");
  assert.equal(await page.getByRole("searchbox").inputValue(), "120/7/1");
  assert.deepEqual(page.wrong, []);
  await page.context().close();
});

test("colours follow the system until one is chosen, and the choice is kept", async () => {
  const page = await open(browser, job.url, "/", { colorScheme: "dark" });
  const scheme = () => page.evaluate(() => getComputedStyle(document.documentElement).colorScheme);
  assert.equal(await scheme(), "dark");
  await page.keyboard.press("c");
  assert.equal(await scheme(), "light");
  await page.reload();
  await drawn(page, "overview");
  assert.equal(await scheme(), "light");
  await page.context().close();
});
