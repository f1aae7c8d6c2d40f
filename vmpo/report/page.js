// The page: its state, the curves that follow from it, and its sections.

const DATA = JSON.parse(document.getElementById("data").textContent);
const AXES = {
  frames: {label: "frames", unit: "frames", format: formatNumber},
  agent_steps: {label: "agent steps", unit: "agent steps", format: formatNumber},
  seconds: {label: "time of training", unit: "", format: formatSeconds, time: true},
};
const GRID = 200;
const state = {axis: "frames", logX: false, logY: false, hidden: new Set()};
const followers = []; // Redraw functions of charts that follow the controls.
const others = []; // Those of charts that only follow the width of the window.

function byId(id) {
  return document.getElementById(id);
}

// Positions of a curve on the chosen axis: frames and seconds are told at some agent steps, straight lines in between.
function positions(run, chart) {
  const steps = run.curves[chart][0];
  if (state.axis === "agent_steps") return steps;
  run.cache ??= {};
  const {agent_steps, [state.axis]: times} = run.clocks;
  return (run.cache[state.axis + chart] ??= steps.map((step) => valueAt(agent_steps, times, Math.min(step, agent_steps.at(-1))) ?? times[0]));
}

// A group's runs as curves; of several also their mean and its interval, as far as all of them reach.
function groupSeries(group, chart) {
  const runs = DATA.runs.filter((run, i) => run.group === group && !state.hidden.has(i) && run.curves[chart]?.[0].length);
  const series = runs.map((run) => ({name: DATA.groups[group], group, x: positions(run, chart), y: run.curves[chart][1]}));
  if (series.length < 2) return series;
  const start = Math.max(...series.map((s) => s.x[0])), end = Math.min(...series.map((s) => s.x.at(-1)));
  for (const s of series) s.faint = true;
  if (!(end > start)) return series.map((s, i) => ({...s, faint: false, name: runs[i].name}));
  const geometric = state.logX && start > 0;
  const grid = Array.from({length: GRID}, (_, i) => {
    const share = i / (GRID - 1);
    return i === GRID - 1 ? end : geometric ? start * (end / start) ** share : start + share * (end - start);
  });
  const {mean, low, high} = bootstrapBand(series.map((s) => grid.map((x) => valueAt(s.x, s.y, x))));
  return [...series, {name: `${DATA.groups[group]} (${runs.length})`, group, x: grid, y: mean, low, high}];
}

function followingChart(host, chart, options) {
  const plot = new LineChart(host, options);
  followers.push(() => {
    const series = DATA.groups.flatMap((_, group) => groupSeries(group, chart));
    plot.draw(series, {...AXES[state.axis], log: state.logX}, state.logY);
  });
}

function redraw(all = false) {
  for (const draw of followers) draw();
  if (all) for (const draw of others) draw();
}

function section(id, title, ...children) {
  byId("sections").append(element("section", {id}, element("h2", {text: title}), ...children));
  byId("contents").append(element("a", {href: `#${id}`, text: title}));
  return byId(id);
}

function explain(text) {
  return element("p", {class: "explain", text});
}

function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

function buildControls() {
  const axes = {frames: "Frames", agent_steps: "Agent steps", seconds: "Time"};
  for (const [axis, name] of Object.entries(axes)) {
    const choose = () => { state.axis = axis; showControls(); redraw(); };
    byId("axis").append(element("button", {type: "button", role: "radio", id: `axis-${axis}`, text: name, on: {click: choose}}));
  }
  for (const [field, name] of [["logX", "Log x"], ["logY", "Log y"]]) {
    const flip = () => { state[field] = !state[field]; showControls(); redraw(); };
    byId("scales").append(element("button", {type: "button", id: field, text: name, on: {click: flip}}));
  }
  DATA.groups.forEach((name, group) => {
    const flip = () => {
      const members = DATA.runs.flatMap((run, i) => (run.group === group ? [i] : []));
      const hide = members.some((i) => !state.hidden.has(i));
      for (const i of members) if (hide) state.hidden.add(i); else state.hidden.delete(i);
      showControls();
      redraw();
    };
    const runs = DATA.runs.filter((run) => run.group === group).length;
    const text = element("span", {class: "name", text: runs > 1 ? `${name} (${runs})` : name});
    byId("legend").append(element("button", {type: "button", id: `group-${group}`, title: name, on: {click: flip}}, swatch(group), text));
  });
}

function showControls() {
  for (const axis of Object.keys(AXES)) byId(`axis-${axis}`).setAttribute("aria-checked", state.axis === axis);
  for (const field of ["logX", "logY"]) byId(field).setAttribute("aria-pressed", state[field]);
  DATA.groups.forEach((_, group) => {
    const shown = DATA.runs.some((run, i) => run.group === group && !state.hidden.has(i));
    byId(`group-${group}`).setAttribute("aria-pressed", shown);
  });
  DATA.runs.forEach((_, i) => {
    byId(`run-${i}`).checked = !state.hidden.has(i);
    byId(`run-${i}`).closest("tr").classList.toggle("off", state.hidden.has(i));
  });
}

// The greedy evaluation of a run, and at which step if the run has gone beyond it.
function evaluationText({evaluation, agent_steps}) {
  if (!evaluation) return "–";
  const tasks = Object.keys(evaluation.tasks).length;
  const text = tasks > 1 ? count(tasks, "task") : `${formatNumber(evaluation.mean, 4)} ± ${formatNumber(evaluation.deviation)}`;
  return evaluation.agent_steps < agent_steps ? `${text} at ${formatNumber(evaluation.agent_steps)} steps` : text;
}

function runRow(run, i) {
  const flip = () => { if (state.hidden.has(i)) state.hidden.delete(i); else state.hidden.add(i); showControls(); redraw(); };
  const box = element("input", {type: "checkbox", id: `run-${i}`, on: {change: flip}});
  const scores = Object.values(run.scores).filter((score) => score !== null);
  const text = scores.length > 1 ? `${scores.length} tasks` : scores.length ? scores[0] : "–";
  const cells = [element("label", {}, box, swatch(run.group), element("span", {text: run.name})), run.environment, run.seed, run.frames, formatSeconds(run.seconds), run.speed, text];
  if (DATA.runs.some((other) => other.evaluation)) cells.push(evaluationText(run));
  const row = element("tr", {}, ...cells.map(cell));
  row.children[0].className = "text wide";
  row.children[1].className = "text";
  return row;
}

function buildRuns() {
  const headings = ["run", "environment", "seed", "frames", "time", "agent steps/s", "last return"];
  const evaluated = DATA.runs.filter((run) => run.evaluation);
  const text = "A ticked run is drawn. Runs that differ only in their seed share a colour. The last return is the mean over the last 100 training episodes.";
  const place = section("runs", "Runs", explain(evaluated.length ? `${text} Greedy: the mean and deviation over the episodes of the evaluation at its end.` : text));
  if (evaluated.length) headings.push("greedy");
  const list = table(headings, DATA.runs.map(runRow));
  list.querySelectorAll("th")[1].className = "text";
  place.append(list);
  const notes = DATA.runs.flatMap((run) => run.notes.map((note) => `${run.name}: ${note}`));
  const tasks = evaluated.flatMap((run) => Object.entries(run.evaluation.tasks).map(([task, mean]) => [run.name, task, mean]));
  if (tasks.length) place.append(folded("Greedy returns of each task", table(["run", "task", "return"], tasks)));
  if (notes.length) place.append(element("div", {class: "notes", id: "notes"}, ...notes.map((text) => element("p", {text}))));
}

function buildCurves() {
  const place = section("curves", "Learning curves", explain(
    "Mean return of the last 100 training episodes. Where a group has several runs: each as a thin line, their mean as a thick one as far as all of them reach, and its 95% bootstrap interval."));
  if (DATA.thinned) place.append(explain(`Long curves are thinned to at most ${DATA.points} points for returns and a third of that for the rest, which keep the lowest and the highest value of every stretch.`));
  const host = element("div", {class: `charts ${DATA.tasks.length === 1 ? "single" : ""}`});
  place.append(host);
  for (const task of DATA.tasks) followingChart(host, `return ${task}`, {title: task, height: DATA.tasks.length === 1 ? 380 : 270});
}

function buildScores() {
  if (!DATA.blocks.length) return;
  const place = section("scores", "Aggregate scores", explain(
    "A run's score is its last return. IQM: mean of the middle half of all runs; runs are counted per task. In brackets: 95% stratified bootstrap intervals, which need several runs of a task. Definitions of Agarwal et al. 2021."));
  for (const block of DATA.blocks) {
    const unit = block.normalised ? `human-normalised scores in %${block.capped ? ", capped at 100" : ""}, ${count(block.tasks, "task")}` : "return";
    place.append(element("h3", {text: `${block.title}: ${unit}`}), aggregateTable(block));
    if (new Set(block.groups.map((row) => row.tasks)).size > 1) place.append(explain("Groups that play different numbers of these tasks are not comparable."));
  }
  const host = element("div", {class: `charts ${DATA.blocks.length === 1 ? "single" : ""}`});
  place.append(host);
  for (const block of DATA.blocks) others.push(profileChart(host, block));
}

function buildLevels() {
  for (const levels of DATA.levels) {
    const title = {atari57: "Atari beside the paper", dmlab30: "DMLab levels"}[levels.benchmark] ?? levels.benchmark;
    const text = levels.benchmark === "atari57" ? "Training returns of these runs beside the paper's multi-task IMPALA and V-MPO after 11.4 billion frames. In brackets: human-normalised." : "Training returns; in brackets human-normalised.";
    const place = section(`levels-${levels.benchmark}`, title, explain(text));
    others.push(levelBars(place, levels));
    place.append(levelTable(levels));
  }
}

function buildSweep() {
  if (!DATA.parallel) return;
  const place = section("sweep", "Settings against return", explain("A line for each run: the settings that were varied, and its last mean return. The better, the stronger its colour. Wide ranges are drawn on log scales."));
  const plot = new ParallelPlot(place, DATA.parallel);
  followers.push(() => plot.draw());
}

function healthOptions(name) {
  const bound = name.includes("over_bound");
  const words = {temperature: "Temperature η", e_step_kl_over_bound: "E-step KL over its bound ε_η", entropy: "Entropy of the policy"};
  const [kind, part] = name.split(/\/(.*)/s);
  const title = words[name] ?? (kind === "alpha" ? `Multiplier α of the ${part}` : kind === "kl_over_bound" ? `KL of the ${part} over its bound ε_α` : name);
  return {title, height: 210, ...(bound ? {reference: 1, atLeast: [0.5, 1.5]} : {}), logY: kind === "alpha"};
}

function buildHealth() {
  if (!DATA.health.length) return;
  const place = section("health", "Dual health", explain("The temperature should keep the E-step's KL at its bound (dotted, 1). A policy KL that stays above 1 breaks its bound: its multiplier α lags behind. α is drawn on a log scale."));
  const host = element("div", {class: "charts small"});
  place.append(host);
  for (const name of DATA.health) followingChart(host, `health ${name}`, healthOptions(name));
}

function buildThroughput() {
  if (!DATA.runs.some((run) => run.curves["throughput steps_per_second"] || Object.keys(run.phases).length)) return;
  const place = section("throughput", "Throughput", explain("Agent steps per second, and the mean share of the wall time in each phase."));
  const host = element("div", {class: "charts single"});
  place.append(host);
  followingChart(host, "throughput steps_per_second", {title: "Agent steps per second", height: 220});
  const keys = PHASES.map((phase) => element("span", {class: "key"}, element("i", {class: `share-${phase}`}), phase));
  place.append(element("div", {}, ...keys), phaseTable());
}

function build() {
  byId("summary").textContent = `${DATA.summary}, written ${DATA.written}`;
  byId("footer").textContent = `vmpo ${DATA.version}. This page is one file and loads nothing from the network.`;
  buildControls();
  buildRuns();
  buildCurves();
  buildScores();
  buildLevels();
  buildSweep();
  buildHealth();
  buildThroughput();
  if (DATA.settings.single) section("settings", "Settings", ...singleSettings());
  else if (DATA.groups.length > 1 || Object.keys(DATA.settings.differences).length) {
    section("settings", "Settings that differ", explain(`The same in all runs: ${count(DATA.settings.equal, "other setting")}.`), settingsTable(["setting", ...DATA.groups], DATA.settings.differences));
  }
  if (DATA.videos.length) section("videos", "Videos", videoGallery());
  showControls();
  redraw(true);
}

build();
let width = window.innerWidth, waiting;
window.addEventListener("resize", () => {
  if (window.innerWidth === width) return; // A phone's address bar changes the height alone.
  width = window.innerWidth;
  clearTimeout(waiting);
  waiting = setTimeout(() => redraw(true), 120);
});
for (const [event, value] of [["beforeprint", true], ["afterprint", false]]) {
  window.addEventListener(event, () => { printing = value; redraw(true); });
}
// After the first picture: how long the page took to open.
requestAnimationFrame(() => setTimeout(() => { document.documentElement.dataset.ready = Math.round(performance.now()); }));
