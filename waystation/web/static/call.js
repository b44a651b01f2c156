// Show problems and changes of a call, and record that it was viewed.
"use strict";

const problem = document.getElementById("problem");
if (problem) problem.focus();

// Record the view of a call with a policy. Opening the page without this script records nothing.
const viewed = document.getElementById("viewed");
if (viewed && document.visibilityState === "visible") {
  fetch(viewed.action, { method: "POST", body: new URLSearchParams(new FormData(viewed)), credentials: "same-origin" }).catch(() => {});
}

// Show at once that somebody else answered or claimed the call, unless something was typed here.
const call = document.getElementById("call");
let changes = null;

const typed = () =>
  Array.from(document.querySelectorAll(".answer textarea, .answer input:not([type=hidden], [type=checkbox])")).some(
    (field) => field.value.trim() !== field.defaultValue.trim(),
  );

function onChange() {
  if (Array.from(document.forms).some((form) => form.dataset.sent)) return; // our own answer
  changes.close();
  if (!typed()) {
    location.replace(location.pathname + location.search); // not reload(), which could send a form again
    return;
  }
  const again = document.createElement("a");
  again.href = location.href;
  again.textContent = "Show the current status";
  document.getElementById("changed").replaceChildren("This call has changed since you opened the page. ", again);
}

changes = call && liveStream(() => call.dataset.events, (source) => (source.onmessage = onChange));
