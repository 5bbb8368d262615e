// A browser and a simulated job, for tests, pictures and measurements of the dashboard.

import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { once } from "node:events";

export const need = (name) => {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set: run \`cargo xtask test pages\``);
  return value;
};

const require = createRequire(`${need("ROLLWAY_NODE_MODULES")}/`);
const { chromium } = require("playwright-core");

/** The script that looks for barriers in a page. */
export const AXE = require.resolve("axe-core/axe.min.js");

/** Starts a program that prints an address and ends with its standard input. */
export async function serve(program, args) {
  const child = spawn(program, args, { stdio: ["pipe", "pipe", "inherit"] });
  // A test that fails before it has closed what it opened does not keep the others waiting.
  process.on("exit", () => child.kill("SIGKILL"));
  for (const handle of [child, child.stdin, child.stdout]) handle.unref();
  const ended = once(child, "exit");
  const said = await Promise.race([once(child.stdout, "data"), ended.then(() => null)]);
  if (!said) throw new Error(`${program} ended before it said where it is`);
  return {
    url: String(said[0]).trim(),
    async close() {
      child.stdin.end();
      await ended;
    },
    async kill() {
      child.kill("SIGKILL");
      await ended;
    },
  };
}

/** Serves a simulated job. */
export const demo = (...args) => serve(need("ROLLWAY_DASHBOARD_BIN"), args);

/** Starts a browser without background traffic. */
export const browse = () => chromium.launch({
  executablePath: need("ROLLWAY_CHROMIUM"),
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--font-render-hinting=none"],
});

/**
 * Opens a page of a job with its token. Errors of the page are in `page.wrong`. Timeouts are long,
 * since a loaded machine is slow.
 */
export async function open(browser, url, path = "/", options = {}) {
  const context = await browser.newContext({
    viewport: { width: 1360, height: 860 }, timezoneId: "UTC", ...options });
  context.setDefaultTimeout(60_000);
  const page = await context.newPage();
  page.wrong = [];
  page.on("pageerror", (error) => page.wrong.push(String(error)));
  page.on("console", (message) => {
    if (message.type() === "error") page.wrong.push(message.text());
  });
  // Serves the pages from a folder, without a build.
  if (process.env.ROLLWAY_PAGES) {
    await page.route("**/assets/*", (route) => {
      const name = new URL(route.request().url()).pathname.slice(8);
      // The server generates the list of pages.
      return name === "pages.js" ? route.continue()
        : route.fulfill({ path: `${process.env.ROLLWAY_PAGES}/${name}` });
    });
  }
  await page.goto(url);
  if (path !== "/") await page.goto(new URL(path, url).href);
  await page.locator("h1").first().waitFor();
  return page;
}

/** All pages by name. */
export const PAGES = {
  overview: "/",
  timeline: "/timeline",
  batches: "/batches",
  tasks: "/tasks/120",
  task: "/tasks/120/7",
  runners: "/runners",
  servers: "/servers",
  runs: "/runs",
  run: "/runs/120/7/1",
  metrics: "/series",
  bias: "/bias",
  config: "/config",
};

/** Waits until a page has drawn its content. */
export async function drawn(page, name) {
  const shown = { overview: ".tile b", timeline: ".lanes .span", batches: "tbody .badge",
    tasks: "tbody .stack", task: ".columns .said", runners: "tbody .badge",
    servers: ".server .facts", runs: "tbody .badge", run: ".experience", metrics: ".chart .line",
    bias: ".bin", config: "table.config code" };
  await page.locator(shown[name]).first().waitFor();
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() =>
    requestAnimationFrame(done))));
}
