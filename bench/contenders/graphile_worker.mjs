// graphile-worker, as its "Performance" page configures it (worker.graphile.org/docs/performance).
//
// - concurrentJobs 24, maxPoolSize 25, localQueue of 500 and completeJobBatchDelay 0, the page's own settings. With
//   500 jobs at once, as others have, it was no faster in trials.
// - NO_LOG_SUCCESS, as in its own performance test.
// - Bulk: addJobs, one statement per call ("from single add_jobs batch call").
//
// The peer's side of bench/child.py and bench/roles.py: the task as JSON in the first argument, lines of JSON to the
// parent and back, clocks read in here. process.hrtime is CLOCK_MONOTONIC, as time.monotonic_ns is in Python.
// A completed job is deleted, so what is counted is that none is left.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";

const require = createRequire(`${process.env.BENCH_MODULES}/`);
const { makeWorkerUtils, run, runMigrations, Logger } = await import(
  pathToFileURL(require.resolve("graphile-worker"))
);

const WARM_UPS = 10;
const POLL_MS = 2;
const PRESET = {
  concurrentJobs: 24,
  maxPoolSize: 25,
  localQueue: { size: 500 },
  completeJobBatchDelay: 0,
  failJobBatchDelay: 0,
};
const LEFT = "select count(*)::int as jobs from graphile_worker._private_jobs";

const logger = new Logger(() => (level, message) => {
  if (level === "error" || level === "warning") console.error(level, message);
});

const task = JSON.parse(process.argv[2]);
const options = task.options;
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

function send(message) {
  process.stdout.write(`${JSON.stringify(message)}\n`);
}

async function ready() {
  send({ ready: true });
  if ((await lines.next()).done) throw new Error("the parent process has gone");
}

function now() {
  return process.hrtime.bigint();
}

function seconds(from, to) {
  return Number(to - from) / 1e9;
}

function memory() {
  const status = readFileSync("/proc/self/status", "utf8");
  const megabytes = (name) => Number(new RegExp(`^${name}:\\s+(\\d+)`, "m").exec(status)[1]) / 1024;
  return { rss_mb: megabytes("VmRSS"), peak_mb: megabytes("VmHWM") };
}

function preset() {
  return { worker: { ...PRESET, connectionString: task.target.url, logger } };
}

async function open() {
  const utils = await makeWorkerUtils({ preset: preset() });
  const left = () =>
    utils.withPgClient(async (client) => (await client.query(LEFT)).rows[0].jobs);
  return {
    left,
    release: () => utils.release(),
    enqueue: (n) => utils.addJob("noop", { n }),
    enqueueMany: (first, end) =>
      utils.addJobs(
        Array.from({ length: end - first }, (_, i) => ({ identifier: "noop", payload: { n: first + i } })),
      ),
    settled: async () => {
      while ((await left()) > 0) await sleep(POLL_MS);
    },
  };
}

function work(handle) {
  return run({ preset: preset(), taskList: { noop: async (payload) => handle(payload.n) }, noHandleSignals: true });
}

async function enqueueRange(queue, count) {
  for (let n = 0; n < count; n++) await queue.enqueue(n);
}

const ROLES = {
  async migrate() {
    await ready();
    await runMigrations({ preset: preset() });
    return {};
  },

  async enqueue_singly() {
    const queue = await open();
    await enqueueRange(queue, WARM_UPS);
    await ready();
    const started = now();
    await enqueueRange(queue, options.count);
    const ended = now();
    return { seconds: seconds(started, ended), waiting: await queue.left() };
  },

  async enqueue_in_bulk() {
    const queue = await open();
    if (options.warm_up) await queue.enqueueMany(0, options.warm_up);
    await ready();
    const started = now();
    for (let first = 0; first < options.count; first += options.batch) {
      await queue.enqueueMany(first, Math.min(options.count, first + options.batch));
    }
    const ended = now();
    return { seconds: seconds(started, ended), waiting: await queue.left() };
  },

  async drain() {
    const queue = await open();
    let handled = 0;
    let firstAt = 0n;
    let allHandled;
    const done = new Promise((resolve) => (allHandled = resolve));
    await ready();
    const called = now();
    await work(() => {
      if (!handled) firstAt = now();
      if (++handled === options.count) allHandled();
    });
    await done;
    await queue.settled();
    const ended = now();
    const figures = { seconds: seconds(firstAt, ended), startup_seconds: seconds(called, firstAt), ...memory() };
    return { ...figures, completed: options.count - (await queue.left()), handled };
  },

  async pick_up() {
    const queue = await open();
    const entered = {};
    let handled = 0;
    let allHandled;
    const done = new Promise((resolve) => (allHandled = resolve));
    await work((n) => {
      entered[n] = Number(now());
      if (++handled === options.count) allHandled();
    });
    await ready();
    await ready();
    await done;
    await queue.settled();
    return { entered_ns: entered, handled, completed: options.count - (await queue.left()) };
  },

  async send_now_and_then() {
    const queue = await open();
    const sent = {};
    const acknowledged = {};
    await ready();
    for (let n = 0; n < options.count; n++) {
      await sleep(options.gap * 1000 * (0.5 + Math.random()));
      sent[n] = Number(now());
      await queue.enqueue(n);
      acknowledged[n] = Number(now());
    }
    return { sent_ns: sent, acknowledged_ns: acknowledged };
  },
};

const result = await ROLES[task.role]();
process.stdout.write(`${JSON.stringify({ result })}\n`, () => process.exit(0));
