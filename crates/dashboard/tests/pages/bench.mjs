// Measures the dashboard in a browser: how fast a page of a large job is there, and what it costs
// to keep it up to date while much happens.

import { browse, demo, drawn, open } from "./world.mjs";

const RATE = 1000;
const SECONDS = 10;
const [job, browser] = await Promise.all([
  demo("--tasks", "100000", "--rate", String(RATE)), browse()]);
const say = (name, value) => console.log(`${name.padEnd(46)}${value}`);

for (const [name, path] of [["overview", "/"], ["runs", "/runs"], ["batches", "/batches"],
  ["runners", "/runners"], ["timeline", "/timeline"]]) {
  const page = await open(browser, job.url, path);
  const times = [];
  for (let turn = 0; turn < 5; turn += 1) {
    const began = performance.now();
    await page.goto(new URL(path, job.url).href);
    await drawn(page, name);
    times.push(performance.now() - began);
  }
  times.sort((a, b) => a - b);
  say(`${name}: until it is drawn, median of 5`, `${times[2].toFixed(0)} ms`);
  await page.context().close();
}

for (const [name, path] of [["overview", "/"], ["runs", "/runs"], ["runners", "/runners"]]) {
  const page = await open(browser, job.url, path);
  await drawn(page, name);
  const client = await page.context().newCDPSession(page);
  await client.send("Network.enable");
  await client.send("Performance.enable");
  let [messages, bytes] = [0, 0];
  client.on("Network.eventSourceMessageReceived", (message) => {
    messages += 1;
    bytes += message.data.length;
  });
  const read = async () => Object.fromEntries((await client.send("Performance.getMetrics")).metrics
    .map(({ name: key, value }) => [key, value]));
  const longest = await page.evaluate(() => {
    globalThis.longest = 0;
    new PerformanceObserver((list) => {
      for (const one of list.getEntries()) {
        globalThis.longest = Math.max(globalThis.longest, one.duration);
      }
    }).observe({ type: "longtask" });
    return 0;
  });
  const before = await read();
  await page.waitForTimeout(SECONDS * 1000);
  const after = await read();
  const busy = (after.TaskDuration - before.TaskDuration) / SECONDS;
  say(`${name}: main thread at ${RATE} events/s`, `${(100 * busy).toFixed(1)} % busy`);
  say(`${name}: messages`, `${(messages / SECONDS).toFixed(1)} per second, ` +
    `${(bytes / Math.max(1, messages) / 1000).toFixed(1)} kB each`);
  say(`${name}: longest task above 50 ms`,
    `${(await page.evaluate(() => globalThis.longest) + longest).toFixed(0)} ms`);
  say(`${name}: elements`, await page.evaluate(() => document.querySelectorAll("*").length));
  await page.context().close();
}
await browser.close();
await job.close();
