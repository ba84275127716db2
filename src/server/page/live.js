// Live: what the engine does now and did in the last minutes. Readings of /metrics while the view is open.

import { errorBox, h } from "./dom.js";
import { engineState, parseMetrics, pointOf } from "./metrics.js";
import { Plot } from "./plot.js";
import { getText } from "./server.js";
import { load, save } from "./store.js";

const INTERVAL_MS = 2000;
const SPANS = [[60, "1 min"], [300, "5 min"], [1800, "30 min"]];
const MAX_POINTS = 1800 / (INTERVAL_MS / 1000) + 1;

const count = (value) => (value < 10_000 ? String(Math.round(value)) : `${Math.round(value / 1000)}k`);
const rate = (value) => (value < 10 && value > 0 ? value.toFixed(1) : count(value));
const share = (value) => `${(value * 100).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %`;
const cores = (value) => (value < 10 ? value.toFixed(value < 0.1 && value > 0 ? 2 : 1) : count(value));
const bytes = (value) => (value === 0 ? "0" : value < 2 ** 30 ? `${Math.round(value / 2 ** 20)} MiB` : `${(value / 2 ** 30).toFixed(value < 10 * 2 ** 30 ? 1 : 0)} GiB`);
const time = (value) => (value === 0 ? "0" : value < 1 ? `${(value * 1000).toFixed(value < 0.01 ? 1 : 0)} ms` : `${value.toFixed(1)} s`);

const PLOTS = [
  { title: "Sequences", note: "in the batch, and in the queue", least: 2, series: [
    { name: "running", of: (point) => point.running, form: count },
    { name: "waiting", of: (point) => point.waiting, form: count }] },
  { title: "KV cache", note: "share of the blocks in use", ceiling: 1, series: [
    { name: "in use", of: (point) => point.kv, form: share },
    { name: "of prompts from the cache", of: (point) => point.hits, form: share }] },
  { title: "Generated tokens", note: "of all requests together", least: 10, series: [
    { name: "tokens/s", of: (point) => point.generated, form: rate }] },
  { title: "Prompt tokens", note: "counted at the first token", least: 10, series: [
    { name: "tokens/s", of: (point) => point.prompt, form: rate }] },
  { title: "Time to first token", note: "mean of each interval", least: 0.01, series: [
    { name: "mean", of: (point) => point.first, form: time }] },
  { title: "Time between tokens", note: "mean of each interval", least: 0.01, series: [
    { name: "mean", of: (point) => point.between, form: time }] },
  { title: "CPU", note: "cores in use", least: 1, isOptional: true, series: [
    { name: "engine", of: (point) => point.engineCpu, form: cores },
    { name: "server", of: (point) => point.serverCpu, form: cores }] },
  { title: "Memory", note: "resident, of the processes", least: 2 ** 28, isBinary: true, isOptional: true, series: [
    { name: "engine", of: (point) => point.engineMemory, form: bytes },
    { name: "server", of: (point) => point.serverMemory, form: bytes }] },
  { title: "GPU", note: "mean of the GPUs", ceiling: 1, isOptional: true, series: [
    { name: "busy", of: (point) => point.gpu, form: share },
    { name: "memory in use", of: (point) => point.gpuMemory, form: share }] },
];

export function liveView() {
  const plots = PLOTS.map((each) => new Plot(each));
  const points = [];
  let before = null;
  let turn = null; // of the loop that reads now; a loop of an earlier turn ends
  let span = load("live-span", 300);

  const state = h("p", { class: "engine-state", role: "status" });
  const problem = h("div");
  const choices = SPANS.map(([seconds, name]) =>
    h("label", {}, h("input", { type: "radio", name: "span", value: seconds, checked: seconds === span }), h("span", {}, name)));
  const range = h("fieldset", { class: "segmented" }, h("legend", { class: "hidden" }, "Time shown"), ...choices);
  range.addEventListener("change", (event) => {
    span = Number(event.target.value);
    save("live-span", span);
    draw();
  });
  const element = h("section", { class: "page live", "aria-labelledby": "live-title" },
    h("div", { class: "page-head" }, h("h1", { id: "live-title" }, "Live"), state, range), problem,
    h("div", { class: "plots" }, ...plots.map((plot) => plot.element)));

  // Nothing is known from here until the next reading.
  function interrupt() {
    if (before !== null) points.push({ at: performance.now() / 1000 });
    before = null;
  }

  function draw() {
    plots.forEach((plot) => plot.show(points, span));
  }

  async function read() {
    try {
      const reading = { ...parseMetrics(await getText("metrics")), at: performance.now() / 1000 };
      points.push(pointOf(reading, before));
      points.splice(0, points.length - MAX_POINTS);
      before = reading;
      const name = engineState(reading);
      state.textContent = `engine ${name}`;
      state.dataset.state = name;
      problem.replaceChildren();
      draw();
    } catch (error) {
      interrupt();
      draw();
      state.textContent = error.details?.code === "insufficient_scope" ? "not allowed" : "no values";
      state.dataset.state = "unknown";
      problem.replaceChildren(errorBox(error));
      if (error.status >= 400 && error.status < 500) return false; // a key, or a right, is missing: asking again does not help
    }
    return true;
  }

  async function run(mine) {
    const goesOn = await read();
    if (turn !== mine) return;
    if (goesOn) setTimeout(() => turn === mine && run(mine), INTERVAL_MS);
    else turn = null;
  }

  function start() {
    if (turn !== null || element.hidden || document.hidden) return;
    turn = {};
    run(turn);
  }

  function stop() {
    turn = null;
    interrupt();
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
  document.addEventListener("key-changed", start);
  return { element, shown: start, hidden: stop };
}
