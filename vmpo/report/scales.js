"use strict";
// Numbers on axes: how they are written, where ticks stand, and how values become pixels.

function formatNumber(value, digits = 3) {
  if (value === null || value === undefined || !isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  for (const [unit, name] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= unit * (unit === 1e3 ? 10 : 1) && size < 1e13) return trim(value / unit, digits) + name;
  }
  if (size >= 1e13 || size < 1e-3) return value.toExponential(digits - 2).replace("e+", "e").replace(".0e", "e").replaceAll("-", "−");
  return trim(value, Math.max(digits, size >= 1000 ? 4 : 0));
}

function trim(value, digits) {
  return String(Number(value.toPrecision(digits))).replace("-", "−");
}

function formatSeconds(value) {
  if (value < 120) return trim(value, 3) + " s";
  if (value < 7200) return trim(value / 60, 3) + " min";
  return trim(value / 3600, 3) + " h";
}

function linearTicks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= rough * 0.999);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(i * step);
  return ticks;
}

// Whole minutes and hours instead of hundreds of seconds.
function timeTicks(low, high, count) {
  const unit = high < 120 ? 1 : high < 7200 ? 60 : 3600;
  return linearTicks(low / unit, high / unit, count).map((tick) => tick * unit);
}

function logTicks(low, high, count) {
  const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
  const stride = Math.max(1, Math.ceil((last - first + 1) / Math.max(count, 1)));
  const ticks = [];
  for (let power = first; power <= last; power += stride) ticks.push(10 ** power);
  return ticks.length >= 2 ? ticks : linearTicks(low, high, count).filter((tick) => tick > 0);
}

// Digits that neighbouring ticks need to differ.
function tickDigits(ticks) {
  const ratios = ticks.slice(1).map((tick, i) => Math.max(Math.abs(tick), Math.abs(ticks[i])) / (tick - ticks[i]));
  return Math.min(15, Math.max(3, ...ratios.map((ratio) => Math.ceil(Math.log10(ratio)) + 1)));
}

// A scale from values to pixels. A logarithm with values at or below zero becomes a symmetric one, linear around zero.
function makeScale(domain, pixels, {log = false, ticks = 5, time = false} = {}) {
  let [low, high] = domain;
  if (!(high > low)) [low, high] = [low - (Math.abs(low) * 0.1 || 1), low + (Math.abs(low) * 0.1 || 1)];
  let forward = (v) => v, backward = (v) => v, marks, kind = "linear";
  if (log && low > 0) {
    [forward, backward, kind] = [Math.log10, (v) => 10 ** v, "log"];
    marks = logTicks(low, high, ticks);
  } else if (log) {
    const unit = 10 ** (Math.floor(Math.log10(Math.max(-low, high))) - 2);
    [forward, backward, kind] = [(v) => Math.asinh(v / unit), (v) => Math.sinh(v) * unit, "symmetric log"];
    const half = Math.max(2, Math.floor(ticks / 2));
    const above = high > unit ? logTicks(unit, high, half) : [], below = low < -unit ? logTicks(unit, -low, half) : [];
    marks = [...below.map((tick) => -tick).reverse(), 0, ...above].filter((tick) => tick >= low && tick <= high);
  } else {
    marks = (time ? timeTicks : linearTicks)(low, high, ticks);
  }
  const [start, end] = [forward(low), forward(high)];
  const map = (value) => pixels[0] + ((forward(value) - start) / (end - start)) * (pixels[1] - pixels[0]);
  const invert = (pixel) => backward(start + ((pixel - pixels[0]) / (pixels[1] - pixels[0])) * (end - start));
  return {map, invert, ticks: marks, kind, digits: tickDigits(marks)};
}

// Value of a curve at a position, on the straight line between its points; null outside of it.
function valueAt(xs, ys, x) {
  const last = xs.length - 1;
  if (last < 0 || x < xs[0] || x > xs[last]) return null;
  let low = 0, high = last;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle; else high = middle;
  }
  const width = xs[high] - xs[low];
  return width > 0 ? ys[low] + ((x - xs[low]) / width) * (ys[high] - ys[low]) : ys[high];
}

// Mean over runs at each position, with the 95% percentile bootstrap interval: whole runs are drawn anew.
function bootstrapBand(rows, resamples = 500) {
  const count = rows.length, length = rows[0].length;
  let state = 12345; // A fixed seed: the same page draws the same band.
  const draw = () => {
    state = (state * 48271) % 2147483647;
    return Math.floor((state / 2147483647) * count);
  };
  const weights = Array.from({length: resamples}, () => {
    const times = new Float64Array(count);
    for (let i = 0; i < count; i++) times[draw()] += 1 / count;
    return times;
  });
  const mean = [], low = [], high = [], means = new Float64Array(resamples);
  for (let position = 0; position < length; position++) {
    let total = 0;
    for (let i = 0; i < count; i++) total += rows[i][position];
    weights.forEach((times, r) => {
      let sum = 0;
      for (let i = 0; i < count; i++) sum += times[i] * rows[i][position];
      means[r] = sum;
    });
    means.sort();
    mean.push(total / count);
    low.push(means[Math.round(0.025 * (resamples - 1))]);
    high.push(means[Math.round(0.975 * (resamples - 1))]);
  }
  return {mean, low, high};
}
