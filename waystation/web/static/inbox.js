// Keep the list of pending calls fresh. Without JavaScript the page reloads itself.
"use strict";

const list = document.getElementById("list");
const stale = document.getElementById("stale");
const EVERY_MS = 5000;

// Do not move rows while somebody is choosing.
const busy = () => document.hidden || list.querySelector("input:checked") || list.contains(document.activeElement);

async function refresh() {
  if (busy()) return;
  const request = fetch(`/approvals/rows?${list.dataset.here}`, { credentials: "same-origin" });
  const answer = await request.catch(() => ({ ok: false }));
  // The login has ended; the page shows that, or leads to the login.
  if (answer.status === 401) location.reload();
  // Without a note, a stale list would look current.
  stale.textContent = answer.ok ? "" : "The server does not answer, so this list may be out of date.";
  if (!answer.ok) return;
  // The server renders and escapes this, like the page.
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").body;
  if (busy() || fresh.innerHTML.trim() === list.dataset.html) return;
  list.dataset.html = fresh.innerHTML.trim();
  list.replaceChildren(...fresh.childNodes);
}

// One request at a time: long lists take the server a while.
const again = () => setTimeout(() => refresh().catch(() => {}).finally(again), EVERY_MS);
again();
document.addEventListener("visibilitychange", () => refresh().catch(() => {}));
