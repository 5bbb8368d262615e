// Takes the pictures of the documentation: every page, light and dark, and some on a phone.

import { mkdir, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";

import { PAGES, browse, demo, drawn, open } from "./world.mjs";
import { smaller } from "./png.mjs";

const FOLDER = fileURLToPath(new URL("../../../../docs/images/", import.meta.url));
const MOST = 150_000;
const LAPTOP = { viewport: { width: 1280, height: 820 } };
const PHONE = { viewport: { width: 390, height: 780 }, isMobile: true, hasTouch: true,
  deviceScaleFactor: 1.5 };
const WAYS = [
  ["light", { ...LAPTOP, colorScheme: "light" }, Object.keys(PAGES)],
  ["dark", { ...LAPTOP, colorScheme: "dark" }, Object.keys(PAGES)],
  ["phone", { ...PHONE, colorScheme: "light" }, ["overview", "runners", "run"]],
  ["phone-dark", { ...PHONE, colorScheme: "dark" }, ["overview", "timeline", "runs"]],
];

/** Prepares a page for its picture. */
const POSES = {
  async run(page) {
    await page.getByRole("button", { name: "Tokens" }).click();
    await page.locator(".tokens span").nth(60).hover();
    await page.locator(".experience").scrollIntoViewIfNeeded();
  },
  async timeline(page) {
    await page.locator(".lanes .span").nth(4).hover();
  },
};

await mkdir(FOLDER, { recursive: true });
const [job, browser] = await Promise.all([demo("--tasks", "100000", "--still"), browse()]);
for (const [way, options, names] of WAYS) {
  const page = await open(browser, job.url, "/", { ...options, reducedMotion: "reduce" });
  for (const name of names) {
    await page.goto(new URL(PAGES[name], job.url).href);
    await drawn(page, name);
    await page.waitForTimeout(600);
    await POSES[name]?.(page);
    await page.waitForTimeout(200);
    const path = `${FOLDER}dashboard-${name}-${way}.png`;
    const bytes = smaller(await page.screenshot());
    if (bytes.length > MOST) throw new Error(`${path} has ${bytes.length} bytes`);
    await writeFile(path, bytes);
    console.log(`${path} ${bytes.length}`);
  }
  if (page.wrong.length) throw new Error(page.wrong.join("\n"));
  await page.context().close();
}
await browser.close();
await job.close();
