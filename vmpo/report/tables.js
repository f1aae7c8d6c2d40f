// What stands in rows: aggregate scores, a benchmark's levels, shares of time, settings and videos.

function table(headings, rows) {
  const head = element("tr", {}, ...headings.map((text, i) => element("th", {text, class: i ? "" : "text"})));
  const body = rows.map((cells) => (cells instanceof Node ? cells : element("tr", {}, ...cells.map(cell))));
  return element("div", {class: "scroll"}, element("table", {}, element("thead", {}, head), element("tbody", {}, ...body)));
}

function cell(content) {
  if (content instanceof Node) return element("td", {}, content);
  return element("td", {text: typeof content === "number" || content === null ? formatNumber(content) : content});
}

function groupName(group) {
  return element("span", {}, swatch(group), " ", element("span", {text: DATA.groups[group]}));
}

// A number with its interval in digits and as a bar on a track that all rows of the column share.
function estimateCell([value, low, high], group, domain) {
  const box = element("span", {}, element("b", {text: formatNumber(value)}));
  if (low !== null) box.append(element("span", {class: "range", text: ` [${formatNumber(low)}, ${formatNumber(high)}]`}));
  const {map} = makeScale(domain, [4, 126]), {colour} = look(group);
  const picture = shape("svg", {class: "mini", viewBox: "0 0 130 8", "aria-hidden": "true"});
  picture.append(shape("line", {class: "track", x1: 0, x2: 130, y1: 4, y2: 4}));
  if (low !== null) picture.append(shape("line", {class: "interval", x1: map(low), x2: map(high), y1: 4, y2: 4, colour}));
  picture.append(shape("circle", {cx: map(value), cy: 4, r: 3.5, colour}));
  box.append(picture);
  return box;
}

function runsOf([fewest, most]) {
  return fewest === most ? String(fewest) : `${fewest} to ${most}`;
}

function aggregateTable(block) {
  // Over one task, the median over tasks is the mean.
  const names = Object.keys(block.groups[0].estimates).filter((name) => block.tasks > 1 || name !== "median");
  const ends = block.groups.flatMap((row) => names.flatMap((name) => row.estimates[name])).filter((value) => value !== null);
  const domain = [Math.min(...ends), Math.max(...ends)];
  const rows = block.groups.map((row) => [
    groupName(row.group), ...(block.tasks > 1 ? [row.tasks] : []), runsOf(row.runs),
    ...names.map((name) => estimateCell(row.estimates[name], row.group, domain)),
  ]);
  return table(["group", ...(block.tasks > 1 ? ["tasks"] : []), "runs", ...names], rows);
}

function profileChart(host, block) {
  const chart = new LineChart(host, {title: `${block.title}: share of runs above a score`, height: 250, share: true});
  // The profile of a single score is a step that says no more than its number.
  const several = block.groups.filter(({tasks, runs}) => tasks * runs[1] > 1);
  const series = several.map(({group, profile}) => ({
    name: DATA.groups[group], group, x: profile.thresholds, y: profile.shares, low: profile.low, high: profile.high,
  }));
  const percent = block.normalised ? "%" : "";
  const label = block.normalised ? "human-normalised score" : "return";
  return () => chart.draw(series, {label, unit: "", format: (value) => formatNumber(value) + percent, log: false}, false);
}

function levelTable({groups, rows}) {
  const agents = Object.keys(rows[0].published);
  const headings = ["level", "random", "human", ...agents.map((agent) => `${agent} (paper)`), ...groups.map((group) => DATA.groups[group])];
  const withShare = (value, share) => (value === null ? "–" : `${formatNumber(value)} (${formatNumber(share)}%)`);
  return table(headings, rows.map((row) => [
    row.level, row.random, row.human,
    ...agents.map((agent) => withShare(...row.published[agent])),
    ...groups.map((_, i) => withShare(row.returns[i], row.normalised[i])),
  ]));
}

// Horizontal bars of human-normalised scores on a scale that is linear near zero and logarithmic beyond.
function levelBars(host, {groups, rows}) {
  const agents = Object.keys(rows[0].published);
  const entries = rows.map((row) => [
    ...groups.map((group, i) => ({name: DATA.groups[group], colour: look(group).colour, value: row.normalised[i]})),
    ...agents.map((agent, i) => ({name: `${agent} (paper)`, colour: `var(--published-${i % 2})`, value: row.published[agent][1]})),
  ].filter((entry) => entry.value !== null));
  const root = element("div", {class: "chart"}, element("h3", {text: "Human-normalised score (100% is the human, 0% a random agent)"}));
  const names = [
    ...groups.map((group) => [DATA.groups[group], look(group).colour]),
    ...agents.map((agent, i) => [`${agent} (paper)`, `var(--published-${i % 2})`]),
  ];
  root.append(element("div", {}, ...names.map(([name, colour]) => {
    const key = element("span", {class: "key"}, element("i"), element("span", {text: name}));
    key.firstChild.style.background = colour;
    return key;
  })));
  const plot = shape("svg", {class: "plot", role: "img", "aria-label": "Human-normalised scores by level"});
  root.append(plot);
  host.append(root);
  return () => {
    const width = roomFor(root), left = Math.min(150, width * 0.3), right = width - 52;
    const bend = (value) => Math.sign(value) * Math.log10(1 + Math.abs(value) / 5);
    const values = entries.flat().map((entry) => bend(entry.value));
    const low = Math.min(0, ...values), high = Math.max(bend(120), ...values);
    const map = (value) => left + ((bend(value) - low) / (high - low)) * (right - left);
    plot.replaceChildren();
    let y = 4;
    for (const [i, row] of rows.entries()) {
      plot.append(shape("text", {x: left - 8, y: y + (entries[i].length * 13) / 2 + 4, "text-anchor": "end"}, row.level));
      for (const entry of entries[i]) {
        const [from, to] = [map(0), map(entry.value)];
        plot.append(shape("rect", {x: Math.min(from, to), y: y + 1, width: Math.max(1, Math.abs(to - from)), height: 11, rx: 1, colour: entry.colour}));
        plot.append(shape("text", {x: Math.max(from, to) + 5, y: y + 10.5}, formatNumber(entry.value) + "%"));
        y += 13;
      }
      y += 12;
    }
    const ticks = [-100, -10, 0, 10, 100, 1000, 10000].filter((tick) => bend(tick) >= low && bend(tick) <= high);
    for (const tick of ticks) {
      plot.prepend(shape("line", {class: tick === 100 ? "reference" : "grid", x1: map(tick), x2: map(tick), y1: 0, y2: y}));
      plot.append(shape("text", {x: map(tick), y: y + 12, "text-anchor": "middle"}, tick === 100 && width > 500 ? "100% human" : tick + "%"));
    }
    plot.setAttribute("viewBox", `0 0 ${width} ${y + 18}`);
  };
}

const PHASES = ["simulate", "infer", "wait", "learn", "rest"];

function meanOf(values) {
  return values.length ? values.reduce((total, value) => total + value, 0) / values.length : null;
}

function phaseTable() {
  const rows = DATA.groups.map((_, group) => {
    const runs = DATA.runs.filter((run) => run.group === group && run.agent_steps > 0);
    const phases = PHASES.map((phase) => [phase, meanOf(runs.flatMap((run) => run.phases[phase] ?? [])) ?? 0]);
    const bar = element("div", {class: "shares"});
    for (const [phase, share] of phases) {
      const part = element("div", {class: `share-${phase}`, title: `${phase} ${formatNumber(100 * share)}%`});
      part.style.flex = `${share} 0 0`;
      bar.append(part);
    }
    const shares = phases.filter(([, share]) => share >= 0.005).map(([phase, share]) => `${phase} ${Math.round(100 * share)}%`).join(", ");
    const speeds = runs.filter((run) => run.speed !== null);
    return [groupName(group), meanOf(speeds.map((run) => run.speed)), meanOf(speeds.map((run) => run.frames / run.seconds)), bar, shares];
  });
  const node = table(["group", "agent steps/s", "frames/s", "where the time goes", ""], rows);
  for (const heading of [...node.querySelectorAll("th")].slice(3)) heading.className = "text";
  return node;
}

function folded(title, content) {
  return element("details", {}, element("summary", {text: title}), content);
}

// Of a single run: what is not as in its preset, and everything in a fold.
function singleSettings() {
  const {changed, all} = DATA.settings.single, some = changed && Object.keys(changed).length;
  const every = Object.fromEntries(Object.entries(all).map(([field, value]) => [field, [value]]));
  return [
    some ? settingsTable(["setting", `preset ${all.preset}`, "this run"], changed)
      : explain(changed ? `As in the preset ${all.preset}.` : `There is no preset ${all.preset} in this version.`),
    folded(`All ${Object.keys(all).length} settings`, settingsTable(["setting", "value"], every)),
  ];
}

function settingsTable(headings, fields) {
  const rows = Object.entries(fields).map(([field, values]) => {
    const cells = values.map((value) => element("td", {class: "text", text: value}));
    return element("tr", {}, element("td", {class: "text", text: field}), ...cells);
  });
  const node = table(headings, rows);
  node.classList.add("settings");
  for (const heading of node.querySelectorAll("th")) heading.className = "text";
  return node;
}

function videoGallery() {
  return element("div", {class: "videos"}, ...DATA.videos.map((video) => {
    const caption = element("figcaption", {text: `${DATA.runs[video.run].name}: ${video.name}${video.note ? ` (${video.note})` : ""}`});
    if (!video.data) return element("figure", {}, caption);
    const isImage = video.kind === "image/gif";
    const options = isImage ? {alt: video.name, src: video.data} : {controls: "", loop: "", muted: "", playsinline: "", preload: "metadata", src: video.data};
    return element("figure", {}, element(isImage ? "img" : "video", options), caption);
  }));
}
