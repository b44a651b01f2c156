// Keep the list of invocations fresh. Without JavaScript the page reloads itself.
"use strict";

const list = document.getElementById("list");
const stale = document.getElementById("stale");
const EVERY_MS = 5000;

// A change would clear the text that a person is selecting.
const isSelecting = () => !getSelection().isCollapsed && list.contains(getSelection().anchorNode);

async function refresh() {
  if (document.hidden || isSelecting()) return;
  const request = fetch(`${location.pathname}?${list.dataset.here}&rows=1`, { credentials: "same-origin" });
  const answer = await request.catch(() => ({ ok: false }));
  // The login has ended; the page shows that, or leads to the login.
  if (answer.status === 401) location.reload();
  // Without a note, a stale list would look current.
  if (answer.ok) showAge(ageOf(answer));
  else stale.textContent = "The server does not answer, so this list may be out of date.";
  if (!answer.ok) return;
  // The server renders and escapes this, like the page.
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").body;
  if (!isSelecting()) update(list, fresh);
}

// Replace only the parts that changed, so that scrolling and the focus stay where they are.
function update(old, fresh) {
  const known = new Map(Array.from(old.children, (each) => [each.dataset.key, each]));
  let next = old.firstElementChild;
  for (const each of Array.from(fresh.children)) {
    let current = known.get(each.dataset.key);
    known.delete(each.dataset.key);
    if (!current) {
      current = each;
      old.insertBefore(current, next);
    } else {
      if (current !== next) old.insertBefore(current, next);
      next = current;
      if (each.tagName === "TABLE") {
        update(current.tBodies[0], each.tBodies[0]);
      } else if (!current.isEqualNode(each)) {
        replace(current, each);
        current = next = each;
      }
    }
    next = current.nextElementSibling;
  }
  for (const gone of known.values()) gone.remove();
}

function replace(old, fresh) {
  const href = old.contains(document.activeElement) && document.activeElement.getAttribute("href");
  const left = old.scrollLeft;
  old.replaceWith(fresh);
  fresh.scrollLeft = left;
  if (href) Array.from(fresh.querySelectorAll("a")).find((each) => each.getAttribute("href") === href)?.focus({ preventScroll: true });
}

// One request at a time: long lists take the server a while.
const again = () => setTimeout(() => refresh().catch(() => {}).finally(again), EVERY_MS);
again();
document.addEventListener("visibilitychange", () => refresh().catch(() => {}));
