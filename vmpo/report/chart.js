// A line chart in SVG: curves, bands, direct labels, and a read-out under the pointer or the arrow keys.

// Text is always set as text: nothing that a run directory contains becomes markup.
function element(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "text") node.textContent = value;
    else if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

function shape(tag, attributes = {}, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "colour") node.style.setProperty(tag === "circle" || tag === "text" || tag === "rect" || attributes.class === "band" ? "fill" : "stroke", value);
    else node.setAttribute(name, value);
  }
  if (text !== undefined) node.textContent = text;
  return node;
}

let printing = false;

// Room for a chart: that of its place on the screen, or its share of a printed page.
function roomFor(root) {
  if (!printing) return Math.max(260, root.clientWidth);
  const columns = root.parentElement.classList;
  return columns.contains("small") ? 310 : columns.contains("single") || !columns.contains("charts") ? 900 : 450;
}

const COLOURS = 8;
const DASHES = ["", "6 3", "2 2", "8 3 2 3"];

// Look of the n-th group: eight colours that colour-blind people can tell apart, then the same with dashes.
function look(group) {
  return {colour: `var(--series-${group % COLOURS})`, dash: DASHES[Math.floor(group / COLOURS) % DASHES.length]};
}

function swatch(group) {
  const {colour, dash} = look(group);
  const picture = shape("svg", {class: "swatch", viewBox: "0 0 20 8", "aria-hidden": "true"});
  picture.append(shape("line", {x1: 0, x2: 20, y1: 4, y2: 4, colour, "stroke-dasharray": dash}));
  return picture;
}

class LineChart {
  // options: title, unit (of the values), height, reference (a line at a value), atLeast (a range that is always shown), logY, share (values within 0 and 1)
  constructor(host, options) {
    this.options = options;
    this.root = element("div", {class: "chart"}, element("h3", {text: options.title}));
    this.plot = shape("svg", {class: "plot", tabindex: 0, role: "img", "aria-label": options.title});
    this.root.append(this.plot);
    host.append(this.root);
    this.plot.addEventListener("pointermove", (event) => this.hover(this.dataX(event)));
    this.plot.addEventListener("pointerdown", (event) => this.hover(this.dataX(event)));
    this.plot.addEventListener("pointerleave", () => this.leave());
    this.plot.addEventListener("blur", () => this.leave());
    this.plot.addEventListener("keydown", (event) => this.key(event));
  }

  // series: {name, group, x, y, low?, high?, faint?}; axis: {label, format, log, time}
  draw(series, axis, logY) {
    this.leave();
    Object.assign(this, {series, axis});
    const main = series.filter((s) => !s.faint), width = roomFor(this.root), height = this.options.height;
    this.width = width;
    this.labelled = width >= 520 && main.length > 1 && main.length <= 8;
    const longest = Math.max(0, ...main.map((s) => Math.min(s.name.length, 24)));
    this.frame = {left: 50, right: width - (this.labelled ? 14 + longest * 7.3 : 10), top: 8, bottom: height - 40};
    this.plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.plot.replaceChildren();
    this.root.classList.toggle("crowded", main.length > 5);
    if (!series.length) {
      this.x = null;
      this.plot.append(shape("text", {x: width / 2, y: height / 2, "text-anchor": "middle"}, "nothing to show"));
      return;
    }
    const {left, right, top, bottom} = this.frame;
    this.x = makeScale(this.domainX(axis.log), [left, right], {log: axis.log, ticks: width / 110, time: axis.time});
    this.y = makeScale(this.domainY(), [bottom, top], {log: logY || this.options.logY, ticks: height / 55});
    this.root.dataset.xscale = this.x.kind;
    this.root.dataset.yscale = this.y.kind;
    this.drawAxes(axis);
    for (const s of series) if (s.low) this.plot.append(shape("path", {class: "band", d: this.bandPath(s), colour: look(s.group).colour}));
    for (const s of [...series].sort((a, b) => !a.faint - !b.faint)) {
      const {colour, dash} = look(s.group);
      this.plot.append(shape("path", {class: s.faint ? "faint" : "main", d: this.linePath(s.x, s.y), colour, "stroke-dasharray": dash}));
    }
    if (this.labelled) this.drawLabels(main);
    this.marks = shape("g");
    this.plot.append(this.marks);
  }

  domainX(log) {
    let low = Infinity, high = -Infinity;
    for (const {x} of this.series) for (const value of x) if (!log || value > 0) { low = Math.min(low, value); high = Math.max(high, value); }
    return low <= high ? [low, high] : [0, 1];
  }

  domainY() {
    if (this.options.share) return [0, 1];
    let [low, high] = this.options.atLeast ?? [Infinity, -Infinity];
    for (const s of this.series) for (const values of [s.y, s.low, s.high]) for (const value of values ?? []) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
    const margin = 0.03 * (high - low);
    return [low > 0 ? Math.max(low - margin, low * 0.9) : low - margin, high + margin];
  }

  drawAxes(axis) {
    const {left, right, bottom} = this.frame;
    for (const tick of this.y.ticks) {
      const y = this.y.map(tick);
      this.plot.append(shape("line", {class: "grid", x1: left, x2: right, y1: y, y2: y}), shape("text", {x: left - 7, y: y + 4, "text-anchor": "end"}, formatNumber(tick, this.y.digits)));
    }
    this.plot.append(shape("line", {class: "base", x1: left, x2: right, y1: bottom, y2: bottom}));
    for (const tick of this.x.ticks) {
      this.plot.append(shape("text", {class: "tick-x", x: this.x.map(tick), y: bottom + 17, "text-anchor": "middle"}, axis.format(tick)));
    }
    this.plot.append(shape("text", {class: "label-x", x: right, y: bottom + 34, "text-anchor": "end"}, axis.label));
    if (this.y.kind === "symmetric log") this.plot.append(shape("text", {x: left, y: bottom + 34}, "symmetric log scale"));
    const reference = this.options.reference;
    if (reference !== undefined) {
      const y = this.y.map(reference);
      this.plot.append(shape("line", {class: "reference", x1: left, x2: right, y1: y, y2: y}));
    }
  }

  linePath(xs, ys) {
    let path = "", pen = "M";
    for (let i = 0; i < xs.length; i++) {
      if (this.x.kind === "log" && xs[i] <= 0) continue;
      path += pen + this.x.map(xs[i]).toFixed(1) + " " + this.y.map(ys[i]).toFixed(1);
      pen = "L";
    }
    return path;
  }

  bandPath({x, low, high}) {
    const back = this.linePath([...x].reverse(), [...low].reverse()).replace("M", "L");
    return back ? this.linePath(x, high) + back + "Z" : "";
  }

  // Names at the ends of the curves, pushed apart where they would overlap.
  drawLabels(main) {
    const {right, top, bottom} = this.frame;
    const labels = main.filter((s) => s.x.length).map((s) => ({s, y: this.y.map(s.y[s.y.length - 1]) + 4})).sort((a, b) => a.y - b.y);
    labels.forEach((label, i) => { if (i) label.y = Math.max(label.y, labels[i - 1].y + 15); });
    const excess = labels.length ? Math.max(0, labels[labels.length - 1].y - bottom) : 0;
    for (const {s, y} of labels) {
      const name = s.name.length > 24 ? s.name.slice(0, 23) + "…" : s.name;
      this.plot.append(shape("text", {class: "direct", x: right + 8, y: Math.max(top + 4, y - excess), colour: look(s.group).colour}, name));
    }
  }

  dataX(event) {
    const box = this.plot.getBoundingClientRect();
    return ((event.clientX - box.left) / box.width) * this.width;
  }

  key(event) {
    const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (event.key === "Escape") this.leave();
    if (!step || !this.x) return;
    event.preventDefault();
    const {left, right} = this.frame;
    this.hover((this.position ?? (left + right) / 2) + (step * (right - left)) / 50);
  }

  hover(pixel) {
    if (!this.x) return;
    const {left, right, top, bottom} = this.frame;
    this.position = Math.min(right, Math.max(left, pixel));
    const x = this.x.invert(this.position);
    const rows = this.series.filter((s) => !s.faint).map((s) => ({s, y: valueAt(s.x, s.y, x)})).filter((row) => row.y !== null).sort((a, b) => b.y - a.y);
    this.marks.replaceChildren(shape("line", {class: "cross", x1: this.position, x2: this.position, y1: top, y2: bottom}));
    for (const {s, y} of rows) this.marks.append(shape("circle", {class: "dot", cx: this.position, cy: this.y.map(y), r: 4, colour: look(s.group).colour}));
    this.showTip(x, rows);
  }

  showTip(x, rows) {
    this.tip?.remove();
    this.tip = element("div", {class: "tip", role: "status"}, element("b", {text: `${this.axis.format(x)} ${this.axis.unit ?? ""}`.trim()}));
    for (const {s, y} of rows.slice(0, 12)) {
      const value = element("span", {class: "value", text: formatNumber(y)});
      if (s.low) value.append(element("span", {class: "interval", text: ` [${formatNumber(valueAt(s.x, s.low, x))}, ${formatNumber(valueAt(s.x, s.high, x))}]`}));
      this.tip.append(element("div", {}, swatch(s.group), element("span", {text: s.name}), value));
    }
    if (rows.length > 12) this.tip.append(element("div", {text: `and ${rows.length - 12} more`}));
    this.root.append(this.tip);
    const scale = this.plot.clientWidth / this.width, centre = this.position * scale;
    const left = centre + 14 + this.tip.offsetWidth > this.root.clientWidth ? centre - 14 - this.tip.offsetWidth : centre + 14;
    this.tip.style.left = `${Math.max(0, left)}px`;
    this.tip.style.top = `${this.root.firstChild.offsetHeight + 12}px`;
  }

  leave() {
    this.position = undefined;
    this.tip?.remove();
    this.tip = undefined;
    this.marks?.replaceChildren();
  }
}
