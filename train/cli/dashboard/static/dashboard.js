// Keeps a page up to date with the server-sent events of its address. It pauses while the page is hidden, so that
// the server does no work for it, and connects again after the server was restarted.
const state = document.getElementById("status");
const say = (text, failed = false) => { if (state.textContent !== text) state.textContent = text; state.classList.toggle("failed", failed); };

// Replaces the content of a part, but keeps what the viewer has opened or selected in it.
const replace = (element, html) => {
  const key = details => details.querySelector("summary")?.textContent.replace(/\d+/g, "");
  const seen = new Map([...element.querySelectorAll("details")].map(details => [key(details), details.open]));
  const focused = element.contains(document.activeElement) ? document.activeElement : null;
  const place = focused && (focused.id ? "#" + CSS.escape(focused.id) : focused.getAttribute("href") ? `[href="${CSS.escape(focused.getAttribute("href"))}"]` : "");
  const chosen = [...element.querySelectorAll("select[id]")].map(select => [select.id, select.value]);
  element.innerHTML = html;
  element.querySelectorAll("details").forEach(details => { if (seen.has(key(details))) details.open = seen.get(key(details)); });
  chosen.forEach(([id, value]) => { const select = document.getElementById(id); if (select) select.value = value; });
  if (place) element.querySelector(place)?.focus({preventScroll: true});
};

const show = charts => {
  const area = document.getElementById("charts");
  if (!area || !globalThis.Plotly) return;
  const titles = charts.map(chart => chart.title);
  if (titles.join("\n") !== [...area.querySelectorAll("h3")].map(title => title.textContent).join("\n")) {
    area.replaceChildren(...charts.map((chart, number) => {
      const section = document.createElement("section"), title = document.createElement("h3"), drawing = document.createElement("div");
      section.className = chart.wide === undefined ? "" : "wide";
      title.textContent = chart.title;
      drawing.className = "chart";
      drawing.id = "chart-" + number;
      section.append(title, drawing);
      return section;
    }));
  }
  draw(charts);
};

// On a slow machine, charts are drawn less often, so that drawing takes at most a tenth of the time.
let waiting = null, due = 0;
const showInTime = charts => {
  const planned = waiting !== null;
  waiting = charts;
  if (planned) return;
  setTimeout(() => {
    const began = performance.now();
    const latest = waiting;
    waiting = null;
    show(latest);
    due = performance.now() + 9 * (performance.now() - began);
  }, Math.max(0, due - performance.now()));
};

const log = document.getElementById("log");
const MOST = 2000;
const append = event => {
  if (event.first) log.replaceChildren();
  log.querySelector(".current")?.remove();
  log.append(...event.lines.map(line => document.createTextNode(line + "\n")));
  while (log.childNodes.length > MOST) log.firstChild.remove();
  if (event.current) {
    const current = document.createElement("span");
    current.className = "current";
    current.textContent = event.current;
    log.append(current);
  }
  if (document.getElementById("follow").checked) log.scrollTop = log.scrollHeight;
};

const take = parts => {
  if (parts.lines) { append(parts); return say("live"); }
  for (const [name, value] of Object.entries(parts)) {
    if (name === "charts") showInTime(value);
    else if (name !== "problem") document.querySelectorAll(`[data-part="${CSS.escape(name)}"]`).forEach(element => replace(element, value));
  }
  if (parts.problem) say(parts.problem, true); else say("live");
};

let source = null;
const connect = () => {
  const address = document.body.dataset.updates;
  if (!address || source || document.hidden) return;
  source = new EventSource(address);
  source.onmessage = event => take(JSON.parse(event.data));
  source.onerror = () => {
    say("no connection to the dashboard: trying again …", true);
    if (source?.readyState === EventSource.CLOSED) { source = null; setTimeout(connect, 3000); }
  };
};
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) return connect();
  source?.close();
  source = null;
  say("paused");
});
const drawn = document.getElementById("chart-data");
if (drawn) showInTime(JSON.parse(drawn.textContent));
connect();
