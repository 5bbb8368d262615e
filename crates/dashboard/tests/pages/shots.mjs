// Takes the pictures that the documentation shows: pages in light and dark, and some on a phone.

import { mkdir, readFile, readdir, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";

import { PAGES, browse, demo, drawn, open } from "./world.mjs";
import { smaller } from "./png.mjs";

const FOLDER = fileURLToPath(new URL("../../../../docs/images/", import.meta.url));
const MOST = 150_000;
const LAPTOP = { viewport: { width: 1280, height: 820 } };
const PHONE = { viewport: { width: 390, height: 780 }, isMobile: true, hasTouch: true,
  deviceScaleFactor: 1.5 };
const WAYS = [
  ["light", { ...LAPTOP, colorScheme: "light" }],
  ["dark", { ...LAPTOP, colorScheme: "dark" }],
  ["phone", { ...PHONE, colorScheme: "light" }],
  ["phone-dark", { ...PHONE, colorScheme: "dark" }],
];

/** The text of all pages of the documentation. */
async function documentation() {
  const root = new URL("../../../../", import.meta.url);
  const docs = (await readdir(new URL("docs/", root))).filter((name) => name.endsWith(".md"));
  const files = ["README.md", ...docs.map((name) => `docs/${name}`)];
  const texts = await Promise.all(files.map((name) => readFile(new URL(name, root), "utf8")));
  return texts.join("\n");
}

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
const shown = await documentation();
const [job, browser] = await Promise.all([demo("--tasks", "100000", "--still"), browse()]);
for (const [way, options] of WAYS) {
  const page = await open(browser, job.url, "/", { ...options, reducedMotion: "reduce" });
  for (const [name, address] of Object.entries(PAGES)) {
    const file = `dashboard-${name}-${way}.png`;
    if (!shown.includes(file)) continue;
    await page.goto(new URL(address, job.url).href);
    await drawn(page, name);
    await page.waitForTimeout(600);
    await POSES[name]?.(page);
    await page.waitForTimeout(200);
    const path = FOLDER + file;
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
