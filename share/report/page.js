"use strict";
/* Adds to the page what needs a script: values at the pointer, zoom, other axes, links to a step.
 *
 * data.figures[i] belongs to the i-th figure of the page: {title, zero, y: the range, series: [curve or null],
 * runs: [likewise, of series of several runs]}. A curve is {x, y, lo, hi} with steps in x; where a point stands for
 * several values, y is their mean, lo and hi are their extremes. data.series[i] = {name, stroke, first, n: its runs};
 * data.runs[i] = {name, knots: the axes' values in some rows, between which they are interpolated}. */
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
const state = {axis: data.axis, log: false, whole: false, each: false, smooth: 0, zoom: null, step: null, hidden: new Set()};
const plots = [...document.querySelectorAll(".plot")].map((figure, i) => ({figure, of: data.figures[i],
	svg: figure.querySelector("svg"), note: figure.querySelector(".note").textContent, over: null}));

/* ---- numbers ---- */

const suffixes = ["", "k", "M", "G", "T", "P"];
function short(v, step) {
	const size = Math.abs(v);
	if (v === 0) return "0";
	if (size < 1e-4 || size >= 1e18) return v.toExponential(1);
	const power = size < 1e5 ? 0 : Math.min(5, Math.floor(Math.log10(size) / 3)), unit = 1000 ** power;
	const digits = Math.max(0, Math.min(8, -Math.floor(Math.log10(step / unit) + 1e-9)));
	return (step ? (v / unit).toFixed(digits) : String(Number((v / unit).toPrecision(4)))) + suffixes[power];
}
const long = v => String(Number(v.toPrecision(8)));

function ticks([low, high], most) {
	const raw = (high - low) / most, power = 10 ** Math.floor(Math.log10(raw));
	if (!(raw > 0) || !isFinite(power)) return {list: [low], step: 0};
	const step = power * ([1, 2, 5].find(m => m * power >= raw * (1 - 1e-9)) || 10);
	const list = [];
	for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9 && list.length < 50; k++)
		list.push(k * step);
	return {list, step};
}

function logTicks([low, high]) {
	const list = [], a = Math.floor(Math.log10(low)), b = Math.ceil(Math.log10(high));
	for (let k = a; k <= b; k += Math.ceil((b - a) / 8))
		for (const m of b - a <= 2 ? [1, 2, 3, 5, 7] : [1])
			if (m * 10 ** k >= low * 0.999 && m * 10 ** k <= high * 1.001) list.push(m * 10 ** k);
	return list.length > 2 ? {list, step: 0} : ticks([low, high], 5);
}

/* Returns the first index in an ascending array with a value of at least v. */
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

/* Converts steps to places on the axis, for replicas their mean; null: no log has the axis. */
function toAxis(runs, steps) {
	if (state.axis === "step") return steps;
	const knots = runs.map(r => r.knots).filter(k => k[state.axis]);
	return knots.length ? steps.map(v => knots.reduce(
		(sum, k) => sum + interpolate(k.step, k[state.axis], v) / knots.length, 0)) : null;
}

/* Computes an exponential moving average with bias correction, as in Adam. */
function smoothed(y) {
	const keep = state.smooth;
	let mean = 0, weight = 0;
	return y.map(v => {
		mean = keep * mean + (1 - keep) * v;
		weight = keep * weight + 1 - keep;
		return mean / weight;
	});
}

function curveOf(c, runs, more) {
	const x = c && toAxis(runs, c.x);
	return x ? {x, step: c.x, y: c.y, lo: c.lo || c.y, hi: c.hi || c.y, line: smoothed(c.y), ...more} : null;
}

/* Sets what a plot shows now. */
function arrange(p) {
	const members = s => data.runs.slice(s.first, s.first + s.n);
	const shown = data.series.map((s, i) => i).filter(i => !state.hidden.has(i));
	p.curves = shown.map(i => curveOf(p.of.series[i], members(data.series[i]), {series: i})).filter(c => c);
	p.thin = !state.each ? [] : shown.flatMap(i => members(data.series[i]).map((r, k) =>
		curveOf(p.of.runs[data.series[i].first + k], [r], {series: i}))).filter(c => c);
	p.log = state.log && !p.of.zero && p.curves.some(c => c.hi.some(v => v > 0));
}

function rangeX() {
	let low = Infinity, high = -Infinity;
	for (const p of plots)
		for (const c of p.curves)
			for (const v of c.x) { low = Math.min(low, v); high = Math.max(high, v); }
	return low <= high ? [low, high] : [0, 1];
}

function rangeY(p, x) {
	if (!state.zoom && !state.whole && !p.log) return p.of.y;
	let low = p.of.zero ? 0 : Infinity, high = p.of.zero ? 0 : -Infinity;
	for (const c of p.curves)
		for (let i = 0; i < c.x.length; i++)
			for (const v of [c.lo[i], c.hi[i]])
				if (c.x[i] >= x[0] && c.x[i] <= x[1] && (!p.log || v > 0)) {
					low = Math.min(low, v);
					high = Math.max(high, v);
				}
	if (!(low <= high)) return p.log ? [1, 10] : [0, 1];
	if (p.log) return low === high ? [low / 2, high * 2] : [low, high];
	const pad = (high - low) * 0.03 || Math.abs(low) * 0.01 || 1;
	return [low - pad, high + pad];
}

function layout() {
	plots.forEach(arrange);
	state.all = rangeX();
	const x = state.zoom || state.all;
	for (const p of plots) {
		const y = rangeY(p, x), f = p.log ? Math.log10 : v => v, low = f(y[0]), high = f(y[1]);
		p.x = x;
		p.y = y;
		p.px = v => 1000 * (v - x[0]) / (x[1] - x[0] || 1);
		p.py = v => Math.max(-9000, Math.min(9000, 1000 - 1000 * (f(v) - low) / (high - low || 1)));
	}
}

/* ---- drawing ---- */

function add(parent, name, attributes) {
	const e = document.createElementNS("http://www.w3.org/2000/svg", name);
	for (const k in attributes) e.setAttribute(k, attributes[k]);
	parent.append(e);
	return e;
}

function path(p, xs, ys) {
	let d = "", pen = "M";
	for (let i = 0; i < xs.length; i++) {
		if (p.log && ys[i] <= 0) { pen = "M"; continue; }
		d += pen + p.px(xs[i]).toFixed(1) + " " + p.py(ys[i]).toFixed(1);
		pen = "L";
	}
	return xs.length === 1 ? d + "h0" : d;
}

function labels(p, name, side, t, place) {
	p.figure.querySelector("." + name).replaceChildren(...t.list.map(v => {
		const e = document.createElement("span");
		e.textContent = short(v, t.step);
		e.style[side] = place(v) / 10 + "%";
		return e;
	}));
}

function draw(p) {
	const x = ticks(p.x, Math.min(10, Math.max(2, p.svg.clientWidth / 90))), y = p.log ? logTicks(p.y) : ticks(p.y, 5);
	p.svg.replaceChildren();
	p.over = null;
	add(p.svg, "path", {class: "grid", d: y.list.map(v => `M0 ${p.py(v)}h1000`).join("") +
		x.list.map(v => `M${p.px(v)} 0v1000`).join("")});
	if (p.of.zero) add(p.svg, "path", {class: "zero", d: `M0 ${p.py(0)}h1000`});
	labels(p, "x", "left", x, p.px);
	labels(p, "y", "bottom", y, v => 1000 - p.py(v));
	p.figure.querySelector(".note").textContent = !p.curves.length ? `no values over ${state.axis}` :
		p.y === p.of.y ? p.note : "";
	for (const c of p.curves) {
		const g = add(p.svg, "g", {class: "series s" + c.series, style: data.series[c.series].stroke});
		const back = [...c.x.keys()].reverse();
		if (c.lo !== c.y && (data.series.length <= 8 || data.series[c.series].n > 1)) add(g, "path", {class: "band", d: path(p, c.x, c.hi) +
			path(p, back.map(i => c.x[i]), back.map(i => c.lo[i])).replace(/^M/, "L")});
		else if (state.smooth) add(g, "path", {class: "thin", d: path(p, c.x, c.y), style: "stroke-width:1"});
		for (const t of p.thin.filter(t => t.series === c.series))
			add(g, "path", {class: "thin", d: path(p, t.x, t.line), style: "stroke-width:1"});
		add(g, "path", {class: "curve", d: path(p, c.x, c.line)});
	}
}

function render() {
	layout();
	plots.forEach(draw);
	mark(state.step);
}

/* ---- the cursor ---- */

/* Returns the place of a step on the axis, which is the place of the nearest row. */
function placeOf(step) {
	const all = plots.flatMap(p => p.curves).map(c => ({c, i: nearest(c.step, step)}));
	const best = all.sort((a, b) => Math.abs(a.c.step[a.i] - step) - Math.abs(b.c.step[b.i] - step))[0];
	return best ? best.c.x[best.i] : null;
}

/* Marks a step in all plots; null: none. */
function mark(step) {
	const x = step === null ? null : placeOf(step);
	for (const p of plots) {
		if (p.over) p.over.remove();
		p.over = null;
		if (x === null || x < p.x[0] || x > p.x[1]) continue;
		p.over = add(p.svg, "g", {});
		add(p.over, "path", {class: "cursor", d: `M${p.px(x)} 0v1000`});
		for (const c of p.curves) {
			const i = nearest(c.x, x);
			if (!(p.log && c.line[i] <= 0))
				add(p.over, "path", {class: "dot", style: data.series[c.series].stroke, d: `M${p.px(c.x[i])} ${p.py(c.line[i])}h0`});
		}
	}
}

/* Returns the values of a plot at a step as rows of name, value, difference: of many, only those nearest to `y`. */
function readings(p, step, y) {
	const max = 12, other = p === plots[0] && plots[1] && plots[1].of.zero ? plots[1].curves : [];
	let list = p.curves.map(c => ({c, i: nearest(c.step, step)}));
	const near = Math.min(...list.map(({c, i}) => Math.abs(c.step[i] - step)));
	const far = ({c, i}) => Math.abs(p.py(c.line[i]) - y);
	if (list.length > max) list = list.sort((a, b) => far(a) - far(b)).slice(0, max);
	return list.map(({c, i}) => {
		const d = other.find(o => o.series === c.series), k = d ? d.step.indexOf(c.step[i]) : -1;
		const late = Math.abs(c.step[i] - step) === near ? "" : ` (step ${c.step[i]})`;
		const spread = c.lo[i] < c.hi[i] ? ` (${long(c.lo[i])} to ${long(c.hi[i])})` : "";
		return {series: c.series, cells: [data.series[c.series].name + late, long(c.y[i]) + spread,
			k >= 0 ? "Δ " + long(d.y[k]) : ""]};
	});
}

function point(p, step, at) {
	const rows = readings(p, step, at ? at.y : 500), table = document.createElement("table");
	const x = state.axis === "step" ? "" : `, ${state.axis} ${short(placeOf(step), 0)}`;
	const title = `${p.of.title}, step ${step}${x}`;
	table.createCaption().textContent = title;
	for (const r of rows) {
		const tr = table.insertRow();
		r.cells.forEach((text, k) => {
			const cell = document.createElement(k ? "td" : "th");
			cell.textContent = text;
			if (!k) cell.style.color = (/var\(--\w+\)/.exec(data.series[r.series].stroke) || [""])[0];
			tr.append(cell);
		});
	}
	mark(step);
	$("reading").textContent = title + "; " + rows.map(r => r.cells.join(" ").trim()).join("; ");
	$("tip").replaceChildren(table);
	$("tip").hidden = !at;
	if (at) place($("tip"), at.event);
}

function place(tip, at) {
	const box = tip.parentNode.getBoundingClientRect();
	let left = at.clientX - box.left + 16;
	if (left + tip.offsetWidth > box.width) left = at.clientX - box.left - 16 - tip.offsetWidth;
	tip.style.left = Math.max(0, left) + "px";
	tip.style.top = at.clientY - box.top + 16 + "px";
}

function leave() {
	$("tip").hidden = true;
	mark(state.step);
}

/* Marks the step in the page's address; clicking a plot sets it. */
function follow() {
	const named = /^#step=(\d+)$/.exec(location.hash);
	state.step = named ? Number(named[1]) : null;
	if (!named || !plots.length) return mark(state.step);
	if (state.zoom) { state.zoom = null; render(); }
	point(plots[0], nearestStep(plots[0], placeOf(state.step)), null);
	plots[0].figure.scrollIntoView({block: "center"});
}

function nearestStep(p, x) {
	const all = p.curves.map(c => ({c, i: nearest(c.x, x)}));
	const best = all.sort((a, b) => Math.abs(a.c.x[a.i] - x) - Math.abs(b.c.x[b.i] - x))[0];
	return best ? best.c.step[best.i] : null;
}

/* ---- zoom ---- */

function zoom(to) {
	const low = to ? Math.max(state.all[0], Math.min(...to)) : 0, high = to ? Math.min(state.all[1], Math.max(...to)) : 0;
	if (to && !(high > low)) return;
	state.zoom = !to || (low === state.all[0] && high === state.all[1]) ? null : [low, high];
	render();
}

function zoomBy(factor) {
	const [low, high] = state.zoom || state.all, at = state.step === null ? null : placeOf(state.step);
	const c = at === null ? (low + high) / 2 : at;
	zoom([c - (c - low) * factor, c + (high - c) * factor]);
}

function move(p, by) {
	const c = p.curves[0];
	if (!c) return;
	const i = state.step === null ? (by > 0 ? -1 : c.step.length) + Math.sign(by) : nearest(c.step, state.step) + by;
	state.step = c.step[Math.max(0, Math.min(c.step.length - 1, i))];
	point(p, state.step, null);
}

function widen(p) {
	p.figure.classList.toggle("wide");
	draw(p);
}

const keys = {
	ArrowRight: (p, e) => move(p, e.shiftKey ? 10 : 1), ArrowLeft: (p, e) => move(p, e.shiftKey ? -10 : -1),
	"+": () => zoomBy(0.5), "=": () => zoomBy(0.5), "-": () => zoomBy(2), Enter: p => widen(p),
	Escape: () => { state.step = null; leave(); zoom(null); },
};

function listen(p) {
	const s = p.svg;
	let from = null;
	const at = e => {
		const box = s.getBoundingClientRect(), part = (e.clientX - box.left) / box.width;
		return {x: p.x[0] + Math.max(0, Math.min(1, part)) * (p.x[1] - p.x[0]), y: 1000 * (e.clientY - box.top) / box.height, event: e};
	};
	s.addEventListener("pointerdown", e => {
		if (e.button) return;
		from = at(e).x;
		s.setPointerCapture(e.pointerId);
	});
	s.addEventListener("pointermove", e => {
		const to = at(e), step = nearestStep(p, to.x);
		if (step === null) return;
		point(p, step, to);
		if (from !== null && p.over)
			add(p.over, "rect", {class: "selection", x: p.px(Math.min(from, to.x)), y: 0, width: Math.abs(p.px(to.x) - p.px(from)), height: 1000});
	});
	s.addEventListener("pointerup", e => {
		const begin = from, end = at(e).x;
		from = null;
		if (begin === null) return;
		if (Math.abs(p.px(end) - p.px(begin)) > 8) return zoom([begin, end]);
		state.step = nearestStep(p, end);
		if (state.step !== null) history.replaceState(null, "", "#step=" + state.step);
	});
	s.addEventListener("pointercancel", () => { from = null; });
	s.addEventListener("pointerleave", () => { if (from === null) leave(); });
	s.addEventListener("dblclick", () => zoom(null));
	s.addEventListener("keydown", e => {
		if (!keys[e.key] || e.ctrlKey || e.metaKey || e.altKey) return;
		e.preventDefault();
		keys[e.key](p, e);
	});
	p.figure.querySelector("b").addEventListener("click", () => widen(p));
}

/* ---- the form and the legend ---- */

function legend(item, i) {
	const label = document.createElement("label"), box = document.createElement("input");
	box.type = "checkbox";
	box.checked = true;
	box.addEventListener("change", () => {
		if (box.checked) state.hidden.delete(i); else state.hidden.add(i);
		render();
	});
	const focus = on => {
		$("plots").classList.toggle("focus", on);
		for (const g of document.querySelectorAll("g.s" + i)) g.classList.toggle("on", on);
	};
	item.addEventListener("pointerenter", () => focus(true));
	item.addEventListener("pointerleave", () => focus(false));
	label.append(box, " ", ...item.childNodes);
	item.append(label);
}

for (const a of ["step", "tokens", "samples", "seconds", "bytes"].filter(a => data.runs.some(r => r.knots[a])))
	$("axis").append(new Option(a, a, false, a === state.axis));
$("axis").addEventListener("change", () => { state.axis = $("axis").value; state.zoom = null; render(); });
$("smooth").addEventListener("input", e => { state.smooth = e.target.value / 100; render(); });
for (const id of ["log", "whole", "each"])
	$(id).addEventListener("change", e => { state[id] = e.target.checked; render(); });
$("each-label").hidden = data.series.every(s => s.n === 1);
$("reset").addEventListener("click", () => zoom(null));
$("controls").addEventListener("submit", e => e.preventDefault());
$("controls").hidden = false;
$("plots").classList.add("live");
document.querySelectorAll(".legend li").forEach(legend);
layout();
plots.forEach(listen);
addEventListener("hashchange", follow);
follow();
})();
