// A parallel plot: an axis for each setting that was varied and one for the score, and a line for each run.

class ParallelPlot {
  constructor(host, {fields, rows}) {
    this.rows = [...rows].sort((a, b) => a.score - b.score); // The best are drawn last, on top.
    this.axes = [...fields, "return"].map((name, i) => ({name, of: (row) => (i < fields.length ? row.values[i] : row.score)}));
    this.root = element("div", {class: "chart parallel"});
    this.plot = shape("svg", {class: "plot", tabindex: 0, role: "img", "aria-label": "Settings of each run against its return"});
    this.note = element("p", {class: "explain chosen", role: "status", text: "Point at a line to read a run."});
    this.root.append(this.plot, this.note);
    host.append(this.root);
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerdown", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => this.choose(null));
    this.plot.addEventListener("keydown", (event) => this.key(event));
  }

  draw() {
    const width = roomFor(this.root), height = 300, top = 34, bottom = height - 14, shown = this.shown();
    this.width = width;
    this.plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.plot.replaceChildren();
    this.axes.forEach((axis, i) => {
      const values = this.rows.map(axis.of).filter((value) => value !== null), low = Math.min(...values), high = Math.max(...values);
      axis.x = 46 + (i * (width - 92)) / (this.axes.length - 1);
      axis.scale = makeScale([low, high], [bottom, top], {log: low > 0 && high > 4 * low && axis.name !== "return", ticks: 4});
      this.plot.append(shape("line", {class: "base", x1: axis.x, x2: axis.x, y1: top, y2: bottom}));
      const name = axis.name.split(".").at(-1), anchor = i === 0 ? "start" : i === this.axes.length - 1 ? "end" : "middle";
      const x = i === 0 ? 4 : i === this.axes.length - 1 ? width - 4 : axis.x;
      this.plot.append(shape("text", {x, y: 16 + 13 * (this.axes.length > 4 ? i % 2 : 0), "text-anchor": anchor}, name));
      const between = axis.scale.ticks.filter((tick) => axis.scale.map(tick) > top + 18 && axis.scale.map(tick) < bottom - 18);
      axis.marks = [low, ...between, high].map((value) => shape("text", {class: "over", x: axis.x + 5, y: axis.scale.map(value) + 4}, formatNumber(value)));
    });
    this.lines = new Map();
    const scores = shown.map((row) => row.score), low = Math.min(...scores), high = Math.max(...scores);
    for (const row of shown) {
      const share = high > low ? (row.score - low) / (high - low) : 1;
      const line = shape("path", {class: "trial", d: this.path(row), colour: `color-mix(in oklab, var(--series-0) ${Math.round(100 * share)}%, var(--published-0))`});
      this.lines.set(row, line);
      this.plot.append(line);
    }
    this.plot.append(...this.axes.flatMap((axis) => axis.marks));
  }

  shown() {
    return this.rows.filter((row) => !state.hidden.has(row.run));
  }

  path(row) {
    let path = "", pen = "M";
    for (const axis of this.axes) {
      const value = axis.of(row);
      if (value === null) { pen = "M"; continue; } // A run without this setting: its line has a gap.
      path += `${pen}${axis.x.toFixed(1)} ${axis.scale.map(value).toFixed(1)}`;
      pen = "L";
    }
    return path;
  }

  // The run whose line passes closest to the pointer.
  point(event) {
    const box = this.plot.getBoundingClientRect(), scale = this.width / box.width;
    const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
    const right = Math.max(1, this.axes.findIndex((axis) => axis.x >= x)), [a, b] = [this.axes[right - 1], this.axes[right]];
    const share = (x - a.x) / (b.x - a.x);
    let best = null, distance = 24;
    for (const row of this.shown()) {
      if (a.of(row) === null || b.of(row) === null) continue;
      const [from, to] = [a.scale.map(a.of(row)), b.scale.map(b.of(row))];
      const away = Math.abs(from + Math.min(1, Math.max(0, share)) * (to - from) - y);
      if (away < distance) [best, distance] = [row, away];
    }
    this.choose(best);
  }

  key(event) {
    const step = {ArrowLeft: -1, ArrowRight: 1}[event.key], rows = this.shown();
    if (event.key === "Escape") this.choose(null);
    if (!step || !rows.length) return;
    event.preventDefault();
    const at = rows.indexOf(this.chosen);
    this.choose(at < 0 ? rows.at(-1) : rows[Math.min(rows.length - 1, Math.max(0, at + step))]);
  }

  choose(row) {
    this.lines.get(this.chosen)?.classList.remove("chosen");
    this.chosen = row;
    this.lines.get(row)?.classList.add("chosen");
    if (row) this.plot.insertBefore(this.lines.get(row), this.axes[0].marks[0]);
    const values = (row) => this.axes.map((axis) => `${axis.name} ${formatNumber(axis.of(row), 4)}`).join(", ");
    this.note.textContent = row ? `${DATA.runs[row.run].name}: ${values(row)}` : "Point at a line to read a run.";
  }
}
