// Shows what GET /admin/live says, once a second, and asks for changes. Text from the server
// reaches the page as text alone (textContent). Nothing is kept in the browser but the session's
// cookie, which this script can't read.
"use strict";

const EVERY_MS = 1000;
const HIDDEN_EVERY_MS = 10000;
const TIMEOUT_MS = 4000;
const LOST_MS = 5000;
const CHECK_DELAY_MS = 200;
const KEPT = 60; // looks back at a queue, one a second
const NEAR = 0.75; // of a cap: shown as a warning

const $ = (id) => document.getElementById(id);
const state = { me: null, live: null, answered: 0, rehearsals: null, manifests: null, asked: 0 };

// -- asking -------------------------------------------------------------------------------

async function ask(path, body) {
  const options = { headers: {}, signal: AbortSignal.timeout(body ? 15000 : TIMEOUT_MS) };
  if (body !== undefined) {
    options.method = "POST";
    options.body = JSON.stringify(body);
    options.headers["content-type"] = "application/json";
    if (state.me) options.headers["x-csrf-token"] = state.me.csrf;
  }
  const answer = await fetch(path, options);
  const text = await answer.text();
  let content = {};
  try { content = JSON.parse(text); } catch { content = { error: text.slice(0, 200) }; }
  return { status: answer.status, content };
}

async function tried(path, body) {
  try {
    return await ask(path, body);
  } catch (error) {
    return { status: 0, content: { error: `The gateway did not answer: ${error.message}` } };
  }
}

// -- words and numbers ----------------------------------------------------------------------

const grouped = new Intl.NumberFormat("en");
const number = (value) => (value === null || value === undefined ? "–" : grouped.format(value));
const compacted = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const compact = (value) => (value < 10000 ? grouped.format(value) : compacted.format(value));
const percent = (value) => `${Number(value.toFixed(1))} %`;

function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.0005) return "0 s";
  if (value < 0.01) return `${(value * 1000).toFixed(1)} ms`;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 10) return `${value.toFixed(2)} s`;
  return value < 100 ? `${value.toFixed(1)} s` : `${grouped.format(Math.round(value))} s`;
}

function short(engine) {
  return engine.replace(/^https?:\/\//, "");
}

function moment(text) {
  if (!text) return "–";
  const at = new Date(typeof text === "number" ? text * 1000 : text);
  if (Number.isNaN(at.getTime())) return String(text);
  const today = at.toDateString() === new Date().toDateString();
  return today ? at.toLocaleTimeString("en-GB") : at.toLocaleString("en-GB");
}

const OUTCOMES = {
  queue_full: "the queue holds as many as it may",
  queue_tokens_full: "the queue holds as many prompt tokens as it may",
  queue_bytes_full: "the queue holds as many bytes as it may",
  queue_expired: "waited as long as anybody may",
  predicted_wait: "would have waited longer than its class promises",
  principal_limit: "the caller has as many requests as it may",
  ingress_full: "the gateway holds as many requests as it may",
  paused: "an operator paused the flow",
  no_engine: "no engine of the pool is in use",
  draining: "the pool, the route or the gateway drains",
  drain_terminated: "ended at the deadline of a drain",
  engine_rejected: "the engine refused it",
  engine_error: "the engine answered an error",
  upstream_unreachable: "the engine could not be reached",
  upstream_timeout: "the engine did not answer in time",
  stream_interrupted: "the engine ended the stream early",
  prompt_too_long: "the prompt is longer than the model takes",
  unauthenticated: "no key, or not one that is known",
  forbidden: "the key does not allow it",
  not_found: "no such model, class or path",
  bad_request: "the request can't be read or is not allowed",
  body_too_large: "the body is larger than it may be",
  body_timeout: "the body did not come in time",
  identity_unavailable: "the issuer's keys can't be had now",
  headers_too_large: "the headers are larger than they may be",
  header_timeout: "the headers did not come in time",
  internal_error: "a fault of the gateway: see its log",
};

const FIELDS = {
  stable: "stable pool",
  candidate: "candidate pool",
  candidate_weight: "candidate's callers",
  draining: "draining",
  value: "",
};

// -- building tables that keep their rows, so that focus and screen readers keep theirs --------

function element(tag, attributes, text) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// One cell: {text, sub, tone}, {bar: [value, cap], text, tone} or {past: [values]}.
function paint(cell, shown) {
  if (shown.past) return paintPast(cell, shown.past);
  if (shown.bar) {
    if (!cell.bar) {
      cell.replaceChildren();
      cell.box = element("div", { class: "bar-cell" });
      const bar = element("div", { class: "bar", "aria-hidden": "true" });
      cell.bar = element("i");
      cell.label = element("b");
      bar.append(cell.bar);
      cell.box.append(bar, cell.label);
      cell.append(cell.box);
    }
    const [value, cap] = shown.bar;
    const part = cap > 0 ? Math.min(1, value / cap) : 0;
    cell.bar.style.setProperty("--part", part.toFixed(3));
    cell.box.className = `bar-cell ${shown.tone || ""}`;
    cell.label.className = shown.tone || "";
    write(cell.label, shown.text);
    return;
  }
  if (!cell.main) {
    cell.replaceChildren();
    cell.main = element("span");
    cell.sub = element("span", { class: "sub" });
    cell.append(cell.main, cell.sub);
  }
  cell.main.className = shown.tone || "";
  write(cell.main, shown.text);
  write(cell.sub, shown.sub || "");
}

const SVG = "http://www.w3.org/2000/svg";
function paintPast(cell, values) {
  if (!cell.line) {
    cell.replaceChildren();
    const drawing = document.createElementNS(SVG, "svg");
    for (const [name, value] of Object.entries({ viewBox: "0 0 60 20", preserveAspectRatio: "none", class: "past", "aria-hidden": "true" })) drawing.setAttribute(name, value);
    cell.line = document.createElementNS(SVG, "path");
    drawing.append(cell.line);
    cell.box = element("div", { class: "bar-cell" });
    cell.label = element("b", { class: "soft" });
    cell.box.append(drawing, cell.label);
    cell.append(cell.box);
  }
  const most = Math.max(...values);
  const from = KEPT - values.length;
  const points = values.map((value, n) => `L${from + n} ${(20 - (most ? 19 * value / most : 0)).toFixed(1)}`);
  cell.line.setAttribute("d", `M${from} 20 ${points.join(" ")} L${KEPT - 1} 20 Z`);
  write(cell.label, `most ${compact(most)}`);
}

class Table {
  constructor(place, label, columns, none) {
    this.place = $(place);
    this.columns = columns;
    this.rows = new Map();
    this.table = element("table", { role: "table", "aria-label": label });
    const head = element("tr", { role: "row" });
    for (const column of columns) {
      head.append(element("th", { role: "columnheader", scope: "col", class: column.buttons ? "doing" : column.kind || "", "aria-label": column.long || column.label || "actions" }, column.label));
    }
    const top = element("thead", { role: "rowgroup" });
    top.append(head);
    this.body = element("tbody", { role: "rowgroup" });
    this.table.append(top, this.body);
    this.none = element("p", { class: "none" }, none);
    this.place.replaceChildren(this.table, this.none);
  }

  show(items, keyOf) {
    const wanted = new Set(items.map(keyOf));
    for (const [key, row] of this.rows) {
      if (!wanted.has(key)) { row.node.remove(); this.rows.delete(key); }
    }
    items.forEach((item, index) => {
      const key = keyOf(item);
      const row = this.rows.get(key) || this.make(key);
      row.item = item;
      this.columns.forEach((column, n) => {
        if (column.buttons) buttons(row.cells[n], column.buttons(item), row);
        else paint(row.cells[n], column.of(item));
      });
      if (this.body.children[index] !== row.node) this.body.insertBefore(row.node, this.body.children[index] || null);
    });
    this.table.hidden = items.length === 0;
    this.none.hidden = items.length > 0;
  }

  make(key) {
    const node = element("tr", { role: "row", "data-key": key });
    const cells = this.columns.map((column) => {
      const kind = column.buttons ? "doing" : column.kind || "";
      return element("td", { role: "cell", class: kind, "data-label": column.long || column.label });
    });
    node.append(...cells);
    const row = { node, cells, item: null };
    this.rows.set(key, row);
    return row;
  }
}

// The buttons of a row: [{name, label, act(item)}]; those that stay are kept.
function buttons(cell, wanted, row) {
  const names = wanted.map((each) => each.name).join(" ");
  if (cell.names === names) return;
  const focused = cell.contains(document.activeElement) ? document.activeElement.name : null;
  cell.names = names;
  cell.replaceChildren(...wanted.map((each) => {
    const made = element("button", { type: "button", name: each.name }, each.label);
    made.addEventListener("click", () => each.act(row.item));
    if (each.about) made.setAttribute("aria-label", `${each.label} ${each.about}`);
    return made;
  }));
  const again = focused && (cell.querySelector(`[name="${focused}"]`) || cell.querySelector("button"));
  if (again) again.focus();
}

// -- the tables -----------------------------------------------------------------------------

const ofCap = (value, cap) => {
  const tone = cap > 0 && value >= cap ? "bad" : cap > 0 && value >= NEAR * cap ? "warn" : "";
  return { bar: [value, cap], text: `${compact(value)} of ${compact(cap)}`, tone };
};

function age(row) {
  const shown = ofCap(row.oldest_age_s, row.max_age_s);
  return { ...shown, text: `${seconds(row.oldest_age_s)} of ${seconds(row.max_age_s)}` };
}

function latency(key, limit, part) {
  return (row) => {
    const found = row[key];
    if (!found) return { text: "–", tone: "soft" };
    const value = found[part];
    return { text: seconds(value), tone: part !== "p50_s" && value > row[limit] ? "bad" : "" };
  };
}

const flowName = (row) => `${row.model}/${row.size_class} ${row.service_class}`;
const depths = new Map();
function past(row) {
  const values = depths.get(flowName(row)) || [];
  values.push(row.depth);
  if (values.length > KEPT) values.shift();
  depths.set(flowName(row), values);
  return values;
}

function pausedBy(row) {
  if (!row.paused) return "";
  return ["paused", ...row.paused_by.map((each) => `by ${each.by}${each.expires_in_s === null ? "" : `, resumes in ${seconds(each.expires_in_s)}`}`)].join(" ");
}

const flowPath = (row) => `flow.${row.model}.${row.size_class}.${row.service_class}.paused`;

function engineState(row) {
  if (!row.up) return { text: "down", tone: "bad", sub: row.reason || "" };
  if (row.paused) return { text: "paused", tone: "warn" };
  if (row.draining) return { text: "draining", tone: "warn" };
  if (!row.usable) return { text: "not in use", tone: "warn", sub: row.reason || "" };
  return { text: "in use", tone: "good", sub: row.held_for ? `next place is for ${row.held_for.size_class} ${row.held_for.service_class}` : "" };
}

function prefilling(row) {
  const parts = row.prefilling.filter((each) => each.count || each.limit).map((each) => `${each.size_class} ${each.count}${each.limit ? ` of ${each.limit}` : ""}`);
  const full = row.prefilling.some((each) => each.limit && each.count >= each.limit);
  return { text: parts.join(", ") || "none", tone: full ? "warn" : parts.length ? "" : "soft" };
}

function candidate(row) {
  if (!row.candidate) return { text: "none", tone: "soft", sub: row.previous ? `before: ${row.previous}` : "" };
  return { text: row.candidate, sub: `${percent(row.candidate_weight)} of callers` };
}

// What ended before its class was known.
const className = (name) => (name === "unknown.unknown" ? "not classified" : name.replace(".", " "));

const may = () => state.me && state.me.role === "operator";
const tables = {};

function makeTables() {
  const doing = (of) => (may() ? [{ label: "", buttons: of }] : []);
  tables.flows = new Table("flows", "Queues", [
    { label: "flow", kind: "name", of: (row) => ({ text: flowName(row), sub: pausedBy(row) }) },
    { label: "waiting", kind: "wide", of: (row) => ofCap(row.depth, row.max_queued) },
    { label: "last minute", kind: "wide", of: (row) => ({ past: past(row) }) },
    { label: "oldest", kind: "wide", of: age },
    { label: "tokens waiting", kind: "wide", of: (row) => ofCap(row.tokens, row.max_queued_tokens) },
    { label: "running", kind: "number", of: (row) => ({ text: number(row.running), sub: row.candidate_running ? `${row.candidate_running} on the candidate` : "" }) },
    ...doing((row) => [row.paused
      ? { name: "resume", label: "Resume…", about: flowName(row), act: (item) => pause(item, false) }
      : { name: "pause", label: "Pause…", about: flowName(row), act: (item) => pause(item, true) }]),
  ], "No flow is configured.");
  tables.engines = new Table("engines", "Engines", [
    { label: "engine", kind: "name", of: (row) => ({ text: short(row.engine), sub: row.pools.join(", ") }) },
    { label: "state", of: engineState },
    { label: "in flight", kind: "wide", of: (row) => ofCap(row.slots, row.slots_limit) },
    { label: "prefill tokens", kind: "wide", of: (row) => ofCap(row.prefill_tokens, row.prefill_tokens_limit) },
    { label: "in prefill", of: prefilling },
    { label: "KV tokens", kind: "wide", of: (row) => ofCap(row.kv_tokens, row.kv_tokens_limit) },
  ], "No engine is known.");
  tables.classes = new Table("classes", "Latency of the last minute", [
    { label: "class", kind: "name", of: (row) => ({ text: `${row.size_class} ${row.service_class}` }) },
    { label: "served", kind: "number", of: (row) => ({ text: number(row.completed) }) },
    { label: "not served", kind: "number", of: (row) => ({ text: number(row.not_completed), tone: row.not_completed ? "warn" : "" }) },
    { label: "first token p50", kind: "number", of: latency("ttft", "ttft_limit_s", "p50_s") },
    { label: "p95", long: "first token p95", kind: "number", of: latency("ttft", "ttft_limit_s", "p95_s") },
    { label: "p99", long: "first token p99", kind: "number", of: latency("ttft", "ttft_limit_s", "p99_s") },
    { label: "limit", long: "its limit", kind: "number", of: (row) => ({ text: seconds(row.ttft_limit_s), tone: "soft" }) },
    { label: "gap p50", kind: "number", of: latency("gaps", "max_stall_s", "p50_s") },
    { label: "p99", long: "gap p99", kind: "number", of: latency("gaps", "max_stall_s", "p99_s") },
    { label: "limit", long: "its limit", kind: "number", of: (row) => ({ text: seconds(row.max_stall_s), tone: "soft" }) },
  ], "No class is configured.");
  tables.outcomes = new Table("outcomes", "Requests that were not served", [
    { label: "outcome", kind: "name", of: (row) => ({ text: row.outcome, sub: row.status ? String(row.status) : "" }) },
    { label: "requests", kind: "number", of: (row) => ({ text: number(row.count) }) },
    { label: "class", of: (row) => ({ text: Object.entries(row.by_class).map(([name, count]) => `${className(name)} ${number(count)}`).join(", ") }) },
    { label: "because", of: (row) => ({ text: OUTCOMES[row.outcome] || "", tone: "soft" }) },
  ], "Every request was served.");
  tables.routes = new Table("routes", "Routes", [
    { label: "route", kind: "name", of: (row) => ({ text: row.route, sub: row.draining ? "draining" : "" }) },
    { label: "stable pool", of: (row) => ({ text: row.stable }) },
    { label: "candidate pool", of: candidate },
    { label: "admission", of: (row) => ({ text: row.admission, tone: row.admission === "enforce" ? "" : "warn" }) },
    ...doing(routeButtons),
  ], "No route is configured.");
  tables.pools = new Table("pools", "Pools", [
    { label: "pool", kind: "name", of: (row) => ({ text: row.name }) },
    { label: "state", of: poolState },
    { label: "engines in use", kind: "number", of: (row) => ({ text: `${row.usable} of ${row.engines.length}`, tone: row.usable ? "" : "bad" }) },
    { label: "running", kind: "number", of: (row) => ({ text: number(row.running) }) },
    ...doing((row) => [row.draining
      ? { name: "undrain", label: "Undrain…", about: row.name, act: undrain }
      : { name: "drain", label: "Drain…", about: row.name, act: drain }]),
  ], "No pool is configured.");
  tables.watches = new Table("watches", "Canaries watched", [
    { label: "watched", kind: "name", of: (row) => (row.figure ? { text: METRICS[row.figure.metric] || row.figure.metric } : { text: row.route, sub: `${row.candidate} against ${row.stable}` }) },
    { label: "verdict", of: verdict },
    { label: "candidate", kind: "number", of: (row) => arm(row, "candidate") },
    { label: "stable", kind: "number", of: (row) => arm(row, "stable") },
    { label: "limit", kind: "number", of: (row) => ({ text: row.figure ? measured(row.figure.metric, row.figure.limit) : "", tone: "soft" }) },
    { label: "why", of: (row) => ({ text: row.figure ? "" : why(row) }) },
  ], "");
  tables.drains = new Table("drains", "Drains", [
    { label: "drain", kind: "name", of: (row) => ({ text: row.drain || row.pool || row.route }) },
    { label: "state", of: (row) => ({ text: row.state || "draining", tone: row.remaining ? "warn" : "good" }) },
    { label: "still running", kind: "number", of: (row) => ({ text: number(row.remaining) }) },
    { label: "done by themselves", kind: "number", of: (row) => ({ text: number(row.drained) }) },
    { label: "ended", kind: "number", of: (row) => ({ text: number(row.ended), tone: row.ended ? "warn" : "" }) },
    { label: "deadline", kind: "number", of: (row) => ({ text: row.remaining ? `in ${seconds(row.deadline_s_left)}` : "–" }) },
    { label: "by", of: (row) => ({ text: row.by || "", sub: row.why || "" }) },
  ], "");
  tables.rehearsals = new Table("rehearsals", "Rehearsals", [
    { label: "route", kind: "name", of: (row) => ({ text: row.route || "", sub: row.to ? `to ${row.to}` : "" }) },
    { label: "state", of: (row) => ({ text: row.state || "", tone: row.state === "running" ? "warn" : "" }) },
    { label: "result", of: (row) => ({ text: row.result || "–", tone: { pass: "good", fail: "bad" }[row.result] || "" }) },
    { label: "at", of: (row) => ({ text: moment(row.at), sub: row.by || "" }) },
    { label: "why", of: (row) => ({ text: row.why || "" }) },
  ], "None yet.");
  tables.history = new Table("history", "Changes of the route table", [
    { label: "revision", kind: "name", of: (row) => ({ text: String(row.revision) }) },
    { label: "at", of: (row) => ({ text: moment(row.at) }) },
    { label: "who", of: (row) => ({ text: row.who || "" }) },
    { label: "change", of: (row) => ({ text: changeName(row) }) },
    { label: "why", of: (row) => ({ text: row.why || "" }) },
  ], "No change was made yet.");
}

// What a revision did and to which routes and pools, of many the first.
function changeName(row) {
  const left = row.touched.length - 3;
  return [row.action, row.touched.slice(0, 3).join(", "), left > 0 ? `and ${left} more` : ""].filter(Boolean).join(" ");
}

const METRICS = {
  error_rate: "errors", refusals: "refused", ttft_attainment: "first token in time",
  stall_attainment: "no gap too long", oldest_age_s: "oldest waiting", oldest_age: "oldest waiting",
};
const TONES = { watching: "good", fine: "good", hold: "warn", breach: "bad", breached: "bad", reverted: "bad" };

// A watch is a row of its own, and one for each figure below it.
function watched(rows) {
  return rows.flatMap((row) => [row, ...(row.figures || []).map((figure) => ({ ...row, figure }))]);
}

function verdict(row) {
  const over = row.state === "ended"; // nothing that anybody has to look after
  if (row.figure) return { text: row.figure.verdict === "hold" ? "too little data" : row.figure.verdict, tone: over ? "soft" : TONES[row.figure.verdict] || "" };
  return { text: row.state, tone: TONES[row.state] || "", sub: over ? `began ${moment(row.since)}` : `${percent(row.weight)} of callers` };
}

// While there is too little data the figures below say so, each for itself.
function why(row) {
  if (row.state !== "watching" || row.verdict === "breach") return row.why || "";
  return row.verdict === "fine" ? "as good as the stable pool" : "waits for enough requests on both";
}

function measured(metric, value) {
  if (value === null || value === undefined) return "–";
  return metric.startsWith("oldest_age") ? seconds(value) : percent(100 * value);
}

function arm(row, name) {
  const found = row.figure && row.figure[name];
  if (!found) return { text: "" };
  return { text: measured(row.figure.metric, found.value), sub: `of ${number(found.count)}` };
}

function poolState(row) {
  if (row.draining) return { text: "draining", tone: "warn" };
  return row.usable ? { text: "open", tone: "good" } : { text: "no engine", tone: "bad" };
}

function routeButtons(row) {
  const found = row.draining ? [{ name: "undrain", label: "Undrain…", about: row.route, act: undrain }] : [];
  const others = poolNames().filter((name) => name !== row.stable);
  if (row.candidate) {
    found.push({ name: "canary", label: "Weight…", about: row.route, act: canary });
    found.push({ name: "promote", label: "Promote…", about: row.route, act: promote });
    found.push({ name: "abort", label: "Take back…", about: row.route, act: takeBack });
  } else if (others.length) {
    found.push({ name: "canary", label: "Canary…", about: row.route, act: canary });
  }
  if (others.length) found.push({ name: "flip", label: "Flip…", about: row.route, act: flip });
  if (state.rehearsals && others.length) found.push({ name: "rehearse", label: "Rehearse…", about: row.route, act: rehearse });
  return found;
}

const poolNames = () => Object.keys(state.live.routes.pools);

function pools(live) {
  return Object.entries(live.routes.pools).map(([name, pool]) => {
    const engines = live.engines.filter((engine) => engine.pools.includes(name));
    return {
      name, engines, draining: pool.draining,
      usable: engines.filter((engine) => engine.usable).length,
      running: pool.running ?? engines.reduce((sum, engine) => sum + engine.slots, 0),
    };
  });
}

// -- showing ----------------------------------------------------------------------------------

function show(live) {
  const before = state.live;
  state.live = live;
  const keep = [KEEPING[live.routes.state], live.routes.state_fault].filter(Boolean).join(" ");
  const waiting = live.flows.reduce((sum, row) => sum + row.depth, 0);
  tables.flows.show(live.flows, flowName);
  tables.engines.show(live.engines.map((row) => ({
    ...row, draining: row.pools.length > 0 && row.pools.every((name) => (live.routes.pools[name] || {}).draining),
  })), (row) => row.engine);
  tables.classes.show(live.classes, (row) => `${row.size_class} ${row.service_class}`);
  tables.outcomes.show(live.outcomes, (row) => row.outcome);
  tables.routes.show(live.routes.routes, (row) => row.route);
  tables.pools.show(pools(live), (row) => row.name);
  tables.watches.show(watched(live.routes.watches || []), (row) => `${row.route} ${row.figure ? row.figure.metric : ""}`);
  tables.drains.show(live.routes.drains || [], (row) => `${row.drain || row.pool || row.route} ${row.since}`);
  tables.history.show(live.routes.history || [], (row) => String(row.revision));
  $("s-watches").hidden = !(live.routes.watches || []).length;
  $("s-drains").hidden = !(live.routes.drains || []).length;
  $("keeping").hidden = !keep;
  write($("keeping"), keep);
  write($("revision"), `revision ${live.routes.revision}`);
  const back = $("roll-back");
  if (back) {
    back.disabled = live.routes.revision === 1;
    back.title = back.disabled ? "No route has moved yet: there is nothing to go back to." : "";
  }
  const span = live.window_s >= 59 ? "last minute" : `last ${Math.round(live.window_s)} s`;
  write($("window"), span);
  write($("window-too"), span);
  summary({ waiting, running: live.gateway.running, "not served": live.outcomes.reduce((sum, row) => sum + row.count, 0) });
  const ready = live.gateway.status === "ready";
  $("state").className = `badge ${ready ? "good" : "bad"}`;
  write($("state"), live.gateway.reasons.join(", ") || "ready");
  document.title = `${waiting ? `${waiting} waiting · ` : ""}Sluicegate`;
  tellChanges(before, live);
}

const KEEPING = {
  none: "Changes are kept in memory only: no state directory is configured, and a restart forgets them.",
  read_only: "The state can't be written: the gateway serves with the last table and refuses changes.",
};

function summary(values) {
  const place = $("summary");
  if (!place.children.length) {
    for (const name of Object.keys(values)) {
      const box = element("div");
      box.append(element("dt", {}, name), element("dd"));
      place.append(box);
    }
  }
  Object.values(values).forEach((value, n) => write(place.children[n].lastChild, number(value)));
}

// What another operator or the gateway itself did since the last look.
function tellChanges(before, live) {
  if (!before) return;
  if (live.routes.revision !== before.routes.revision) {
    const last = (live.routes.history || [])[0] || {};
    const what = last.action ? changeName(last) : "";
    tell(`Routes are at revision ${live.routes.revision}${what ? `: ${what}` : ""}${last.who ? ` by ${last.who}` : ""}`);
  }
  for (const row of live.engines) {
    const was = before.engines.find((each) => each.engine === row.engine);
    if (was && was.up !== row.up) tell(`Engine ${short(row.engine)} is ${row.up ? "up" : "down"}`);
  }
  for (const row of live.routes.drains || []) {
    const was = (before.routes.drains || []).find((each) => each.drain === row.drain && each.since === row.since);
    if (was && was.remaining && !row.remaining) tell(`Drain of ${row.drain || row.pool} is over: ${row.drained} done, ${row.ended} ended`);
  }
}

let toast = 0;
function tell(text) {
  write($("told"), text);
  clearTimeout(toast);
  toast = setTimeout(() => write($("told"), ""), 6000);
}

function connection() {
  if (!state.me) return;
  const silent = Date.now() - state.answered;
  const lost = silent > LOST_MS;
  document.body.classList.toggle("stale", lost);
  $("connection").className = `badge ${lost ? "bad" : "good"}`;
  // Told to screen readers once, not each second.
  $("connection").setAttribute("aria-live", lost && $("connection").textContent !== "live" ? "off" : "polite");
  write($("connection"), lost ? `no answer for ${Math.floor(silent / 1000)} s` : "live");
}

let next = 0;
async function poll() {
  clearTimeout(next);
  if (!state.me) return;
  const turn = ++state.asked;
  const { status, content } = await tried("/admin/live");
  if (turn !== state.asked || !state.me) return;
  if (status === 401) return loggedOut("The session is over: log in again.");
  if (status === 200) {
    state.answered = Date.now();
    show(content);
  } // else the badge says for how long there was no answer
  next = setTimeout(poll, document.hidden ? HIDDEN_EVERY_MS : EVERY_MS);
}

// -- changes ------------------------------------------------------------------------------------

const WHY = { name: "why", label: "Reason", kind: "text", hint: "for the audit" };
const routesAt = () => state.live.routes.revision;

function options(names) {
  return names.map((name) => ({ value: name, text: name }));
}

function others(row) {
  const draining = state.live.routes.pools;
  const names = poolNames().filter((name) => name !== row.stable);
  const first = row.candidate ? [row.candidate] : [];
  return options([...new Set([...first, ...names.sort((a, b) => draining[a].draining - draining[b].draining)])]);
}

function move(wanted) {
  open({ path: "/admin/routes", revision: routesAt, ...wanted });
}

function flip(row) {
  move({
    title: `Flip ${row.route}`, confirm: "Flip",
    what: "All new requests, and those that wait, go to the other pool. What runs stays where it is.",
    fields: [{ name: "to", label: "To pool", options: others(row) }, WHY],
    body: (got) => ({ action: "flip", route: row.route, to: got.to, why: got.why }),
  });
}

function canary(row) {
  const fixed = row.candidate ? options([row.candidate]) : others(row);
  const fields = [
    { name: "to", label: "Candidate pool", options: fixed },
    { name: "weight", label: "Callers, %", kind: "number", value: row.candidate ? row.candidate_weight : 10, min: 0, max: 100, step: "any" },
  ];
  if (!row.candidate) {
    fields.push({ name: "manifest", label: "Rollback record", options: [
      ...(state.manifests || []).map((each) => ({ value: each.digest, text: recordName(each) })),
      { value: "", text: "none, for the reason below" },
    ] });
  }
  fields.push(WHY);
  move({
    title: row.candidate ? `Change the canary of ${row.route}` : `Start a canary of ${row.route}`, confirm: "Set",
    what: "So many of the callers, always the same ones, go to the candidate pool. The gateway watches it and takes it back by itself when it does worse.",
    fields,
    also: (got) => (got.manifest === "" ? "Without a rollback record; the reason is kept in the audit." : ""),
    missing: (got) => (got.manifest === "" && !got.why.trim() ? "Give the reason why there is no rollback record, or choose one." : ""),
    body: (got) => ({
      action: "canary", route: row.route, to: got.to, weight: Number(got.weight), why: got.why,
      ...(got.manifest ? { manifest: got.manifest } : {}),
      ...(got.manifest === "" ? { without_record: got.why } : {}),
    }),
  });
}

function recordName(each) {
  return [each.digest.slice(0, 12), each.deployment_revision, each.owner].filter(Boolean).join(", ");
}

function promote(row) {
  move({
    title: `Promote the candidate of ${row.route}`, confirm: "Promote",
    what: "The candidate pool becomes the stable one and serves every caller.",
    fields: [WHY],
    body: (got) => ({ action: "promote", route: row.route, why: got.why }),
  });
}

function takeBack(row) {
  move({
    title: `Take the candidate of ${row.route} back`, confirm: "Take back",
    what: "Every caller goes to the stable pool again. What runs on the candidate stays there until it ends.",
    fields: [WHY],
    body: (got) => ({ action: "abort", route: row.route, why: got.why }),
  });
}

function drain(row) {
  move({
    title: `Drain ${row.name}`, confirm: "Drain",
    what: "Nothing new is sent there. What runs may finish until the deadline; what is left then is ended.",
    fields: [{ name: "deadline_s", label: "Deadline, s", kind: "number", value: 60, min: 0, step: "any" }, WHY],
    also: (got) => `What still runs after ${seconds(Number(got.deadline_s))} is ended.`,
    body: (got) => ({ action: "drain", pool: row.name, deadline_s: Number(got.deadline_s), why: got.why }),
  });
}

function undrain(row) {
  move({
    title: `Undrain ${row.route || row.name}`, confirm: "Undrain",
    what: "New requests are taken again.",
    fields: [WHY],
    body: (got) => ({ action: "undrain", ...(row.route ? { route: row.route } : { pool: row.name }), why: got.why }),
  });
}

async function rollBack() {
  const past = (state.live.routes.history || []).slice(1);
  const found = await tried("/admin/routes", { action: "rollback", check: true });
  const impossible = found.status === 400 ? found.content.error : "";
  move({
    title: "Roll back", confirm: "Roll back",
    what: "The routes become what they were. What waits follows; what runs stays where it is.",
    fields: [{
      name: "to_revision", label: "To", options: [
        impossible ? { value: "none", text: "choose a revision" } : { value: "", text: "the routes before the last change" },
        ...past.map((each) => ({ value: String(each.revision), text: `revision ${each.revision} (${[changeName(each), each.who].filter(Boolean).join(", ")})` })),
      ],
    }, WHY],
    missing: (got) => (got.to_revision === "none" ? impossible : ""),
    body: (got) => ({ action: "rollback", why: got.why, ...(got.to_revision ? { to_revision: Number(got.to_revision) } : {}) }),
  });
}

function rehearse(row) {
  move({
    path: "/admin/rehearsals",
    title: `Rehearse ${row.route}`, confirm: "Rehearse",
    what: "Canary, flip, rollback and drain under the traffic there is; afterwards all is as before. Callers are served by the other pool for a while.",
    fields: [
      { name: "to", label: "To pool", options: others(row) },
      { name: "weight", label: "Canary, %", kind: "number", value: 10, min: 0, max: 100, step: "any" },
      { name: "hold_s", label: "Each phase, s", kind: "number", value: 10, min: 1, step: "any" },
      WHY,
    ],
    body: (got) => ({ route: row.route, to: got.to, weight: Number(got.weight), hold_s: Number(got.hold_s), why: got.why }),
  });
}

function pause(row, paused) {
  const paths = paused ? [flowPath(row)] : row.paused_by.map((each) => each.path);
  open({
    path: "/admin/limits", revision: () => state.live.limits_revision,
    title: `${paused ? "Pause" : "Resume"} ${flowName(row)}`, confirm: paused ? "Pause" : "Resume",
    what: paused ? "New requests of this flow are refused. What waits or runs goes on." : "New requests of this flow are taken again.",
    fields: paused ? [{ name: "minutes", label: "Resume by itself", kind: "number", min: 0, step: "any", hint: "after so many minutes; empty: never" }] : [],
    also: (got) => (got.minutes ? `Resumes by itself after ${got.minutes} min.` : ""),
    body: (got) => ({
      set: Object.fromEntries(paths.map((path) => [path, paused ? true : null])),
      ...(paused && got.minutes ? { expires_s: 60 * Number(got.minutes) } : {}),
    }),
  });
}

// -- the dialog: shows the exact change as the server states it, then asks for it ----------------

let asking = null;

function open(wanted) {
  asking = { ...wanted, checked: null, turn: 0, busy: false };
  write($("dialog-title"), wanted.title);
  write($("dialog-what"), wanted.what);
  write($("dialog-confirm"), wanted.confirm);
  write($("dialog-error"), "");
  $("dialog-change").replaceChildren();
  $("dialog-fields").replaceChildren(...wanted.fields.map(field));
  $("dialog-confirm").disabled = true;
  $("dialog").showModal();
  const first = $("dialog-fields").querySelector("input, select");
  (first || $("dialog-cancel")).focus();
  check();
}

function field(wanted) {
  const box = element("div");
  const id = `field-${wanted.name}`;
  let input;
  if (wanted.options) {
    input = element("select", { id, name: wanted.name });
    input.append(...wanted.options.map((each) => element("option", { value: each.value }, each.text)));
  } else {
    input = element("input", { id, name: wanted.name, type: wanted.kind, autocomplete: "off" });
    for (const key of ["min", "max", "step"]) if (wanted[key] !== undefined) input.setAttribute(key, wanted[key]);
    if (wanted.value !== undefined) input.value = String(wanted.value);
    if (wanted.hint) input.setAttribute("placeholder", wanted.hint);
    if (wanted.kind === "number" && wanted.value !== undefined) input.setAttribute("required", "");
    if (wanted.kind === "text") input.setAttribute("maxlength", "500");
  }
  box.append(element("label", { for: id }, wanted.label), input);
  return box;
}

function given() {
  const got = {};
  for (const input of $("dialog-fields").querySelectorAll("input, select")) {
    got[input.name] = input.value;
  }
  return got;
}

// What is wrong with the fields by themselves, as the browser words it.
function missed() {
  const wrong = [...$("dialog-fields").querySelectorAll("input, select")].find((input) => !input.checkValidity());
  return wrong ? `${wrong.labels[0].textContent}: ${wrong.validationMessage}` : "";
}

let later = 0;
function checkSoon() {
  $("dialog-confirm").disabled = true;
  asking.turn += 1; // an answer that is under way is about something else now
  clearTimeout(later);
  later = setTimeout(check, CHECK_DELAY_MS);
}

async function check() {
  const mine = asking;
  const turn = ++mine.turn;
  const revision = mine.revision();
  const missing = missed() || (mine.missing ? mine.missing(given()) : "");
  if (missing) return refuse(mine, missing);
  const body = { ...(mine.path === "/admin/rehearsals" ? {} : { revision }), ...mine.body(given()) };
  const found = await tried(mine.path, { ...body, check: true });
  if (asking !== mine || turn !== mine.turn) return;
  if (found.status === 409) return changedMeanwhile(found.content);
  if (found.status === 401) return loggedOut("The session is over: log in again.");
  if (found.status !== 200) return refuse(mine, found.content.error || `The gateway answered ${found.status}.`);
  write($("dialog-error"), "");
  const notes = [...(found.content.warnings || []), ...(mine.also ? [mine.also(given())] : [])];
  $("dialog-change").replaceChildren(
    found.content.steps ? stepList(found.content.steps) : changeTable(found.content.changed || [], revision),
    ...notes.filter(Boolean).map((note) => element("p", { class: "note" }, note)),
  );
  mine.checked = body;
  $("dialog-confirm").disabled = false;
}

function refuse(mine, why) {
  write($("dialog-error"), why);
  $("dialog-change").replaceChildren();
  mine.checked = null;
  $("dialog-confirm").disabled = true;
}

async function confirmed(event) {
  event.preventDefault();
  const mine = asking;
  if (!mine || !mine.checked || mine.busy) return;
  mine.busy = true;
  $("dialog-confirm").disabled = true;
  const found = await tried(mine.path, mine.checked);
  mine.busy = false;
  if (asking !== mine) return;
  if (found.status === 401) return loggedOut("The session is over: log in again.");
  if (found.status === 409) return changedMeanwhile(found.content);
  if (found.status < 200 || found.status > 299) {
    write($("dialog-error"), found.content.error || `The gateway answered ${found.status}.`);
    return;
  }
  $("dialog").close();
  tell(`${mine.title}: done`);
  again();
}

async function changedMeanwhile(content) {
  const by = content.by ? `${content.by} changed it` : "It was changed";
  const what = content.action ? ` (${content.action})` : "";
  write($("dialog-error"), `${by} meanwhile${what}: it is at revision ${content.revision} now. Look at the change anew, then decide.`);
  asking.checked = null;
  const mine = asking;
  const { status, content: live } = await tried("/admin/live");
  if (status === 200) show(live);
  if (asking !== mine) return;
  const told = $("dialog-error").textContent;
  await check();
  if (asking === mine && !$("dialog-error").textContent) write($("dialog-error"), told);
}

function stepList(steps) {
  const list = element("ol");
  list.append(...steps.map((step) => element("li", {}, String(step))));
  return list;
}

function changeTable(changed, revision) {
  const table = element("table");
  table.append(element("caption", {}, `Revision ${revision} becomes ${revision + 1}`));
  const head = element("tr");
  head.append(...["", "", "now", "then"].map((text) => element("th", { scope: "col" }, text)));
  const top = element("thead");
  top.append(head);
  const body = element("tbody");
  for (const each of changed) {
    const keys = Object.keys(each.after).filter((key) => plain(each.before, key) !== plain(each.after, key));
    for (const key of keys) {
      const row = element("tr");
      row.append(
        element("td", { "data-label": "what" }, each.route || each.pool || each.limit || ""),
        element("td", { "data-label": "which" }, FIELDS[key] ?? key.replaceAll("_", " ")),
        element("td", { "data-label": "now" }, plain(each.before, key)),
        element("td", { "data-label": "then", class: "after" }, plain(each.after, key)),
      );
      body.append(row);
    }
  }
  table.append(top, body);
  if (!body.children.length) return element("p", { class: "note" }, "Nothing would change.");
  return table;
}

function plain(values, key) {
  const value = (values || {})[key];
  if (value === null || value === undefined) return key === "value" ? "as configured" : "none";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (key === "candidate_weight") return percent(Number(value));
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

// -- logging in and out -----------------------------------------------------------------------

async function loggedIn(me) {
  state.me = me;
  state.live = null;
  state.answered = Date.now();
  depths.clear();
  makeTables();
  write($("who"), `${me.name}, ${me.role}`);
  const back = element("button", { type: "button", id: "roll-back" }, "Roll back…");
  back.addEventListener("click", rollBack);
  $("route-actions").replaceChildren(...(may() ? [back] : []));
  $("login").hidden = true;
  $("app").hidden = false;
  await extras();
  poll();
}

// Parts that a gateway may not have, and are not shown then.
async function extras() {
  const kept = await optional("manifests");
  state.manifests = kept;
  await rehearsals();
}

async function optional(name) {
  const path = `/admin/${name}`;
  if (!state.me || !state.me.has.includes(path)) return null;
  const { status, content } = await tried(path);
  return status === 200 ? content[name] || [] : null;
}

async function rehearsals() {
  const found = await optional("rehearsals");
  if (!state.me) return;
  state.rehearsals = found || (state.me.has.includes("/admin/rehearsals") ? state.rehearsals || [] : null);
  $("s-rehearsals").hidden = state.rehearsals === null;
  if (state.rehearsals === null) return;
  tables.rehearsals.show(state.rehearsals, (row) => String(row.id || row.digest || `${row.route} ${row.at}`));
  clearTimeout(rehearsed);
  rehearsed = setTimeout(rehearsals, document.hidden ? HIDDEN_EVERY_MS : 2 * EVERY_MS);
}
let rehearsed = 0;

function again() {
  poll(); // an answer that is under way is dropped
}

function loggedOut(why) {
  state.me = null;
  state.live = null;
  asking = null;
  if ($("dialog").open) $("dialog").close();
  document.title = "Sluicegate";
  $("app").hidden = true;
  $("login").hidden = false;
  write($("login-note"), why || "");
  $("token").value = "";
  $("token").focus();
}

async function logIn(event) {
  event.preventDefault();
  write($("login-note"), "");
  const { status, content } = await tried("/console/login", { token: $("token").value.trim() });
  $("token").value = "";
  if (status === 200) return loggedIn(content);
  write($("login-note"), sentence(content.error || `The gateway answered ${status}.`));
  $("token").focus();
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (text.endsWith(".") ? "" : ".");

async function logOut() {
  await tried("/console/logout", {});
  loggedOut("You are logged out.");
}

async function start() {
  $("login-form").addEventListener("submit", logIn);
  $("logout").addEventListener("click", logOut);
  $("dialog-form").addEventListener("submit", confirmed);
  $("dialog-form").addEventListener("input", checkSoon);
  $("dialog-cancel").addEventListener("click", () => $("dialog").close());
  $("dialog").addEventListener("close", () => { asking = null; clearTimeout(later); });
  document.addEventListener("visibilitychange", () => { if (!document.hidden && state.me) again(); });
  setInterval(connection, 250);
  const { status, content } = await tried("/console/session");
  if (status === 200 && content.name) loggedIn(content);
  else loggedOut(status === 200 ? "" : sentence(content.error || ""));
}

start();
