// Ignore a second click on a form that is being sent. The server would count it once anyway.
"use strict";

for (const form of document.querySelectorAll("form.answer")) {
  form.addEventListener("submit", (event) => {
    if (form.dataset.sent) event.preventDefault();
    form.dataset.sent = "1";
  });
}
// After "Back" the form may be sent again; the server decides whether it counts.
window.addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("form.answer")) delete form.dataset.sent;
});

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
