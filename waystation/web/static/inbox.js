// Keep the list of pending calls fresh, and move in it with the keyboard. Without JavaScript the page reloads itself.
"use strict";

const list = document.getElementById("list");
const stale = document.getElementById("stale");
const filters = document.getElementById("filters");
const OUTDATED = "The server does not answer, so this list may be out of date.";
const HIDDEN_MS = 30000;

const versionOf = () => list.querySelector("[data-version]").dataset;

// Do not move rows while somebody is choosing.
const busy = () => document.hidden || list.querySelector("input:checked") || list.contains(document.activeElement);

// Fetch the list, and show it unless somebody is choosing. With `isAsked`, the person asked for another list.
async function refresh(isAsked = false) {
  if (busy() && !isAsked) return;
  const fresh = await fetchList();
  if (!fresh || (busy() && !isAsked)) return;
  const current = rows().indexOf(list.querySelector(".current"));
  const chosen = new Set(Array.from(list.querySelectorAll("input:checked"), (each) => each.value));
  list.replaceChildren(...fresh.childNodes);
  for (const each of list.querySelectorAll("input[name=call]")) each.checked = chosen.has(each.value);
  showCount(list);
  if (current >= 0) mark(Math.min(current, rows().length - 1), false);
}

async function fetchList() {
  const request = fetch(`${location.pathname}/rows?${location.search.slice(1)}`, { credentials: "same-origin" });
  const answer = await request.catch(() => ({ ok: false }));
  // The login has ended; the page shows that, or leads to the login.
  if (answer.status === 401) location.reload();
  // Without a note, a stale list would look current.
  if (answer.ok) showAge(ageOf(answer));
  else stale.textContent = OUTDATED;
  // The server renders and escapes this, like the page.
  return answer.ok ? new DOMParser().parseFromString(await answer.text(), "text/html").body : null;
}

// Show how many calls wait, in the title of the tab, too.
function showCount(part) {
  const waiting = Number(part.querySelector("[data-version]").dataset.waiting);
  document.title = document.title.replace(/^(\(\d+\) )?/, waiting ? `(${waiting}) ` : "");
  document.getElementById("waiting").textContent = waiting || "";
}

// Changes arrive over a stream.
let latest = "";
const changes = liveStream(
  () => `${location.pathname}/events?${location.search.slice(1)}`,
  (source) => {
    source.onmessage = (message) => {
      const list = JSON.parse(message.data);
      latest = list.version;
      showAge(list.age_s);
      if (latest !== versionOf().version) refresh().catch(() => {});
    };
    source.onerror = () => refresh().catch(() => {}); // shows whether the server answers, and detects an ended login
  },
);
document.addEventListener("visibilitychange", () => refresh().catch(() => {}));
// A tab in the background has no stream. Only its title is visible, so only the count is kept fresh.
setInterval(() => document.hidden && fetchList().then((fresh) => fresh && showCount(fresh)).catch(() => {}), HIDDEN_MS);
// Once nobody is choosing any more, show what has changed in between.
const catchUp = () => setTimeout(() => latest && latest !== versionOf().version && refresh().catch(() => {}), 0);
list.addEventListener("focusout", catchUp);
list.addEventListener("change", catchUp);

// Filters apply at once; the buttons are for browsers without JavaScript.
let typing = 0;
async function apply() {
  const isSet = ([name, value]) => value && !(name === "sort" && value === "newest");
  const chosen = new URLSearchParams(Array.from(new FormData(filters)).filter(isSet));
  history.replaceState(null, "", location.pathname + (chosen.size ? `?${chosen}` : ""));
  await refresh(true);
  changes.restart();
}
filters.addEventListener("change", (event) => {
  if (event.target.id !== "q") apply().catch(() => {});
});
filters.addEventListener("input", (event) => {
  if (event.target.id !== "q") return;
  clearTimeout(typing);
  typing = setTimeout(() => apply().catch(() => {}), 250);
});
for (const button of filters.querySelectorAll("button")) button.hidden = true;

// The keyboard
const rows = () => Array.from(list.querySelectorAll(".calls > li"));

function mark(index, scroll = true) {
  const all = rows();
  for (const row of all) row.classList.toggle("current", row === all[index]);
  if (all[index] && scroll) all[index].scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (event) => {
  const field = event.target.closest("input:not([type=checkbox]), select, textarea");
  if (field || document.getElementById("shortcuts").open || event.ctrlKey || event.altKey || event.metaKey) return;
  const all = rows();
  const current = all.findIndex((row) => row.classList.contains("current"));
  const row = all[current];
  const link = row && row.querySelector(".call-link");
  if (event.key === "j") mark(Math.min(current + 1, all.length - 1));
  else if (event.key === "k") mark(Math.max(current - 1, 0));
  else if (event.key === "/") document.getElementById("q").focus();
  else if (event.key === "x" && row) row.querySelector("input").click();
  else if (event.key === "Enter" && link && event.target === document.body) link.click();
  else if ((event.key === "a" || event.key === "r") && link) location.assign(`${link.href}#${event.key}`);
  else return;
  event.preventDefault();
});
