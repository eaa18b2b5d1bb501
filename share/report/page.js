"use strict";
/* The curves of the report: drawn as SVG from the data in the page.
 *
 * data.runs[i] = {name, control: number of its control or -1, knots, curves}. A curve is {x, y} with
 * steps in x; of a long log, y is the mean of some rows, and lo and hi are their extremes. knots has
 * the values of the axes in some rows, between which they are interpolated. data.differences[i] has
 * the curves of test - control, of the rows that both have. */
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const state = {column: data.column, axis: data.axis, smooth: 0, log: false, zoom: null, cursor: null,
	hidden: new Set()};
const charts = {};

/* ---- numbers ---- */

const suffixes = ["", "k", "M", "G", "T", "P"];
function short(v, step) {
	const size = Math.abs(v);
	if (v === 0) return "0";
	if (size < 1e-4) return v.toExponential(1);
	const power = size < 1e5 ? 0 : Math.min(5, Math.floor(Math.log10(size) / 3)), unit = 1000 ** power;
	const digits = Math.max(0, Math.min(8, -Math.floor(Math.log10(step / unit) + 1e-9)));
	return (step ? (v / unit).toFixed(digits) : String(Number((v / unit).toPrecision(4)))) + suffixes[power];
}
const long = v => v === undefined ? "–" : String(Number(v.toPrecision(8)));

function ticks(low, high, most) {
	const raw = (high - low) / most, power = 10 ** Math.floor(Math.log10(raw));
	if (!(raw > 0) || !isFinite(power)) return {list: [low], step: 0};
	const step = power * ([1, 2, 5].find(m => m * power >= raw * (1 - 1e-9)) || 10);
	const list = [];
	for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9 && list.length < 50; k++)
		list.push(k * step);
	return {list, step};
}

function logTicks(low, high) {
	const list = [], a = Math.floor(Math.log10(low)), b = Math.ceil(Math.log10(high));
	const by = Math.ceil((b - a) / 8);
	for (let k = a; k <= b; k += by)
		for (const m of b - a <= 2 ? [1, 2, 3, 5, 7] : [1])
			if (m * 10 ** k >= low * 0.999 && m * 10 ** k <= high * 1.001) list.push(m * 10 ** k);
	return list.length > 2 ? {list, step: 0} : ticks(low, high, 5);
}

/* The first index of an ascending array whose value is not below v. */
function firstFrom(x, v) {
	let low = 0, high = x.length;
	while (low < high) {
		const mid = (low + high) >> 1;
		if (x[mid] < v) low = mid + 1; else high = mid;
	}
	return low;
}

function nearest(x, v) {
	const i = firstFrom(x, v);
	if (i === 0) return 0;
	return i === x.length || v - x[i - 1] < x[i] - v ? i - 1 : i;
}

function interpolate(from, to, v) {
	const n = from.length, i = Math.min(Math.max(firstFrom(from, v), 1), n - 1);
	if (n === 1 || from[i] === from[i - 1]) return to[0] + (v - from[0]);
	return to[i - 1] + (to[i] - to[i - 1]) * (v - from[i - 1]) / (from[i] - from[i - 1]);
}

/* ---- curves ---- */

/* The number of controls, or of tests, before a run. */
const before = (i, control) => data.runs.slice(0, i).filter(r => (r.control < 0) === control).length;
const color = i => data.runs[i].control < 0
	? `var(--k${Math.min(2, before(i, true))})`
	: `var(--t${before(i, false) % 6})`;

/* The x of the chosen axis; null: the log does not have it. */
function toAxis(run, x) {
	if (state.axis === "step") return x;
	const knots = data.runs[run].knots;
	return knots[state.axis] ? x.map(v => interpolate(knots.step, knots[state.axis], v)) : null;
}

/* Exponential moving average, corrected for its begin (as Adam's). */
function smoothed(y) {
	const keep = state.smooth;
	let mean = 0, weight = 0;
	return y.map(v => {
		mean = keep * mean + (1 - keep) * v;
		weight = keep * weight + 1 - keep;
		return mean / weight;
	});
}

function curvesOf(lists) {
	const found = [];
	lists.forEach((curves, run) => {
		const c = curves && curves[state.column];
		if (!c || !c.x.length || state.hidden.has(run)) return;
		const x = toAxis(run, c.x);
		if (x) found.push({run, step: c.x, x, y: c.y, lo: c.lo || c.y, hi: c.hi || c.y,
			line: state.smooth ? smoothed(c.y) : c.y});
	});
	return found;
}

/* ---- charts ---- */

function add(parent, name, attributes, text) {
	const e = document.createElementNS(SVG, name);
	for (const k in attributes) e.setAttribute(k, attributes[k]);
	if (text !== undefined) e.textContent = text;
	parent.append(e);
	return e;
}

function range(curves, key, within) {
	let low = Infinity, high = -Infinity;
	for (const c of curves)
		for (let i = 0; i < c.x.length; i++) {
			if (within && (c.x[i] < within[0] || c.x[i] > within[1])) continue;
			for (const v of key === "x" ? [c.x[i]] : [c.lo[i], c.hi[i]]) {
				if (key === "y" && within && within.log && v <= 0) continue;
				if (v < low) low = v;
				if (v > high) high = v;
			}
		}
	return [low, high];
}

function path(chart, xs, ys) {
	let d = "", pen = "M";
	for (let i = 0; i < xs.length; i++) {
		if (chart.log && ys[i] <= 0) { pen = "M"; continue; }
		d += pen + chart.px(xs[i]).toFixed(1) + " " + chart.py(ys[i]).toFixed(1);
		pen = "L";
	}
	return d;
}

function scales(chart, xr, yr) {
	const left = 58, right = 10, top = 8, bottom = chart.bottom;
	chart.width = Math.max(240, chart.svg.clientWidth || 900);
	chart.box = {left, top, right: chart.width - right, bottom: chart.height - bottom};
	const b = chart.box, f = chart.log ? Math.log10 : v => v;
	const low = f(yr[0]), high = f(yr[1]);
	chart.px = v => b.left + (v - xr[0]) / (xr[1] - xr[0] || 1) * (b.right - b.left);
	chart.inverse = p => xr[0] + (p - b.left) / (b.right - b.left) * (xr[1] - xr[0]);
	chart.py = v => b.bottom - (f(v) - low) / (high - low || 1) * (b.bottom - b.top);
}

function axes(chart, xr, yr) {
	const b = chart.box, s = chart.svg;
	const y = chart.log ? logTicks(...yr) : ticks(...yr, Math.max(3, chart.height / 55));
	for (const v of y.list) {
		const p = chart.py(v);
		add(s, "line", {class: "grid", x1: b.left, x2: b.right, y1: p, y2: p});
		add(s, "text", {x: b.left - 6, y: p + 4, "text-anchor": "end"}, short(v, y.step));
	}
	const x = ticks(...xr, Math.max(2, chart.width / 95));
	for (const v of x.list) {
		const p = chart.px(v);
		add(s, "line", {class: "grid", x1: p, x2: p, y1: b.bottom, y2: b.bottom + 4});
		add(s, "text", {x: p, y: b.bottom + 17, "text-anchor": p > b.right - 20 ? "end" : "middle"},
			short(v, x.step));
	}
	if (chart.bottom > 30)
		add(s, "text", {x: (b.left + b.right) / 2, y: chart.height - 4, "text-anchor": "middle"}, state.axis);
}

function widened([low, high], log) {
	if (!(low <= high)) return [0, 1];
	if (log) return low === high ? [low / 2, high * 2] : [low, high];
	const pad = (high - low) * 0.04 || Math.abs(low) * 0.01 || 1;
	return [low - pad, high + pad];
}

function draw(chart, curves, xr) {
	const s = chart.svg;
	while (s.lastChild && s.lastChild.nodeName !== "title") s.lastChild.remove();
	chart.height = chart.tall ? (innerWidth < 600 ? 260 : 380) : 170;
	s.setAttribute("height", chart.height);
	const within = Object.assign([...xr], {log: chart.log});
	let yr = range(curves, "y", within);
	if (chart.zero && yr[0] <= yr[1]) yr = [Math.min(0, yr[0]), Math.max(0, yr[1])];
	yr = widened(yr, chart.log);
	scales(chart, xr, yr);
	const b = chart.box, clip = s.id + "-clip";
	s.setAttribute("viewBox", `0 0 ${chart.width} ${chart.height}`);
	axes(chart, xr, yr);
	const clipPath = add(add(s, "defs", {}), "clipPath", {id: clip});
	add(clipPath, "rect", {x: b.left, y: b.top - 2, width: b.right - b.left, height: b.bottom - b.top + 4});
	const g = add(s, "g", {"clip-path": `url(#${clip})`});
	if (chart.zero) add(g, "line", {class: "zero", x1: b.left, x2: b.right, y1: chart.py(0), y2: chart.py(0)});
	for (const c of curves) drawCurve(chart, g, c);
	if (!curves.length)
		add(s, "text", {x: (b.left + b.right) / 2, y: (b.top + b.bottom) / 2, "text-anchor": "middle"},
			chart.zero ? "no rows in common" : `no values of ${state.column} over ${state.axis}`);
	chart.curves = curves;
	chart.over = add(s, "g", {});
}

function drawCurve(chart, g, c) {
	const isControl = data.runs[c.run].control < 0, stroke = color(c.run);
	if (c.lo !== c.y) {
		const back = [...c.x.keys()].reverse();
		add(g, "path", {class: "band", style: `fill:${stroke}`, d: path(chart, c.x, c.hi) +
			path(chart, back.map(i => c.x[i]), back.map(i => c.lo[i])).replace(/^M/, "L")});
	} else if (state.smooth) {
		add(g, "path", {class: "raw", style: `stroke:${stroke};stroke-width:1`, d: path(chart, c.x, c.y)});
	}
	/* wide controls under thinner and thinner tests: equal curves are all visible */
	const width = isControl ? 4.4 : Math.max(1.2, 3 - 0.7 * before(c.run, false));
	add(g, "path", {class: "curve", d: path(chart, c.x, c.line), style: `stroke:${stroke};stroke-width:${width}`});
	if (c.x.length === 1)
		add(g, "circle", {cx: chart.px(c.x[0]), cy: chart.py(c.y[0]), r: 3, style: `fill:${stroke}`});
}

function render() {
	const main = curvesOf(data.runs.map(r => r.curves));
	const differences = curvesOf(data.differences);
	let whole = range(main, "x");
	if (!(whole[0] <= whole[1])) whole = [0, 1];
	state.whole = whole;
	const xr = state.zoom || whole;
	charts.main.log = state.log && main.some(c => c.hi.some(v => v > 0));
	draw(charts.main, main, xr);
	draw(charts.difference, differences, xr);
	$("difference").parentNode.hidden = $("h-difference").hidden = !data.differences.some(
		d => d && d[state.column]);
	$("main-title").textContent = `${state.column} over ${state.axis}`;
	if (state.cursor !== null) point(state.cursor, null);
}

/* ---- the cursor ---- */

function readings(chart, x) {
	return chart.curves.map(c => {
		const i = nearest(c.x, x);
		return {run: c.run, step: c.step[i], x: c.x[i], y: c.y[i], lo: c.lo[i], hi: c.hi[i], line: c.line[i],
			grouped: c.lo !== c.y};
	});
}

function row(table, cells, i) {
	const tr = document.createElement("tr");
	cells.forEach((text, k) => {
		const cell = document.createElement(k ? "td" : "th");
		cell.textContent = text;
		if (!k) cell.style.color = color(i);
		tr.append(cell);
	});
	table.append(tr);
}

/* Shows all values at x, and beside the pointer if there is one. */
function point(x, at) {
	state.cursor = x;
	const values = readings(charts.main, x), differences = readings(charts.difference, x);
	for (const chart of Object.values(charts)) {
		chart.over.replaceChildren();
		const p = chart.px(x);
		if (p < chart.box.left - 1 || p > chart.box.right + 1) continue;
		add(chart.over, "line", {class: "cursor", x1: p, x2: p, y1: chart.box.top, y2: chart.box.bottom});
		for (const v of chart === charts.main ? values : differences)
			if (v.x >= chart.inverse(chart.box.left) && v.x <= chart.inverse(chart.box.right) && !(chart.log && v.line <= 0))
				add(chart.over, "circle", {cx: chart.px(v.x), cy: chart.py(v.line), r: 3.5, style: `fill:${color(v.run)}`});
	}
	if (!values.length) return;
	const table = document.createElement("table"), title = document.createElement("caption");
	const near = values.reduce((a, b) => Math.abs(b.x - x) < Math.abs(a.x - x) ? b : a);
	title.textContent = `step ${near.step}` + (state.axis === "step" ? "" : `, ${state.axis} ${short(near.x, 0)}`);
	table.append(title);
	for (const v of values) {
		const d = differences.find(o => o.run === v.run && o.step === v.step);
		const other = v.step === near.step ? "" : ` (step ${v.step})`;
		const spread = v.grouped ? ` (${long(v.lo)} to ${long(v.hi)})` : "";
		row(table, [data.runs[v.run].name + other, long(v.y) + spread, d ? "Δ " + long(d.y) : ""], v.run);
	}
	$("reading").textContent = [...table.querySelectorAll("caption, tr")].map(
		e => [...e.children].map(c => c.textContent).join(" ").trim() || e.textContent).join("; ");
	$("tip").replaceChildren(table);
	$("tip").hidden = !at;
	if (at) place($("tip"), at);
}

function place(tip, at) {
	const box = $("curves").getBoundingClientRect();
	let left = at.clientX - box.left + 16;
	if (left + tip.offsetWidth > box.width) left = at.clientX - box.left - 16 - tip.offsetWidth;
	tip.style.left = Math.max(0, left) + "px";
	tip.style.top = at.clientY - box.top + 16 + "px";
}

function leave() {
	state.cursor = null;
	$("tip").hidden = true;
	for (const chart of Object.values(charts)) chart.over.replaceChildren();
}

/* ---- zoom ---- */

function zoom(to) {
	const w = state.whole;
	if (to) {
		const low = Math.max(w[0], Math.min(...to)), high = Math.min(w[1], Math.max(...to));
		if (!(high > low)) return;
		state.zoom = low === w[0] && high === w[1] ? null : [low, high];
	} else {
		state.zoom = null;
	}
	render();
}

function zoomBy(factor) {
	const [low, high] = state.zoom || state.whole, c = state.cursor === null ? (low + high) / 2 : state.cursor;
	zoom([c - (c - low) * factor, c + (high - c) * factor]);
}

function move(chart, by) {
	const c = chart.curves[0];
	if (!c) return;
	const xr = state.zoom || state.whole;
	const i = state.cursor === null ? nearest(c.x, by > 0 ? xr[0] : xr[1]) : nearest(c.x, state.cursor) + by;
	point(c.x[Math.max(0, Math.min(c.x.length - 1, i))], null);
}

const keys = {
	ArrowRight: (chart, e) => move(chart, e.shiftKey ? 10 : 1),
	ArrowLeft: (chart, e) => move(chart, e.shiftKey ? -10 : -1),
	"+": () => zoomBy(0.5), "=": () => zoomBy(0.5), "-": () => zoomBy(2),
	Escape: () => { leave(); zoom(null); }, "0": () => zoom(null),
};

function listen(chart) {
	const s = chart.svg;
	let from = null;
	const at = e => {
		const p = (e.clientX - s.getBoundingClientRect().left) * chart.width / s.clientWidth;
		return Math.max(chart.box.left, Math.min(chart.box.right, p));
	};
	s.addEventListener("pointerdown", e => {
		if (e.button) return;
		from = at(e);
		s.setPointerCapture(e.pointerId);
	});
	s.addEventListener("pointermove", e => {
		point(chart.inverse(at(e)), e);
		if (from === null) return;
		const x = Math.min(from, at(e)), b = chart.box;
		add(chart.over, "rect", {class: "selection", x, y: b.top, width: Math.abs(at(e) - from), height: b.bottom - b.top});
	});
	s.addEventListener("pointerup", e => {
		const begin = from;
		from = null;
		if (begin !== null && Math.abs(at(e) - begin) > 5)
			zoom([chart.inverse(begin), chart.inverse(at(e))]);
	});
	s.addEventListener("pointercancel", () => { from = null; });
	s.addEventListener("pointerleave", () => { if (from === null) leave(); });
	s.addEventListener("dblclick", () => zoom(null));
	s.addEventListener("blur", leave);
	s.addEventListener("keydown", e => {
		if (!keys[e.key] || e.ctrlKey || e.metaKey || e.altKey) return;
		e.preventDefault();
		keys[e.key](chart, e);
	});
}

/* ---- the form ---- */

function choose(select, words, value, set) {
	for (const w of words) select.append(new Option(w, w, false, w === value));
	select.addEventListener("change", () => { set(select.value); render(); });
}

function legend() {
	data.runs.forEach((run, i) => {
		const label = document.createElement("label"), box = document.createElement("input");
		const line = document.createElement("i"), name = document.createElement("span");
		box.type = "checkbox";
		box.checked = true;
		box.addEventListener("change", () => {
			if (box.checked) state.hidden.delete(i); else state.hidden.add(i);
			render();
		});
		line.style.borderColor = color(i);
		name.textContent = run.name + (run.control < 0 ? " (control)" : "");
		label.append(box, line, name);
		$("legend").append(label);
	});
}

for (const [id, more] of [["main", {tall: true, bottom: 40}], ["difference", {zero: true, bottom: 22}]]) {
	charts[id] = Object.assign({svg: $(id), log: false, curves: []}, more);
	listen(charts[id]);
}
const axesThere = ["step", "tokens", "seconds", "bytes"].filter(a => data.runs.some(r => r.knots[a]));
choose($("column"), data.columns, state.column, v => { state.column = v; });
choose($("axis"), axesThere, state.axis, v => { state.axis = v; state.zoom = null; state.cursor = null; });
$("smooth").addEventListener("input", e => {
	state.smooth = e.target.value / 100;
	$("smooth-value").value = state.smooth;
	render();
});
$("log").addEventListener("change", e => { state.log = e.target.checked; render(); });
$("reset").addEventListener("click", () => zoom(null));
$("controls").addEventListener("submit", e => e.preventDefault());
$("controls").hidden = false;
legend();
render();
addEventListener("resize", render);
})();
