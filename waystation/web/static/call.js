// A second click on a form that is being sent does nothing. The server would count it once anyway.
"use strict";

for (const form of document.querySelectorAll("form.answer")) {
  form.addEventListener("submit", (event) => {
    if (form.dataset.sent) event.preventDefault();
    form.dataset.sent = "1";
  });
}
// Back from the next page: it may be sent again, and the server says what it thinks of that.
window.addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("form.answer")) delete form.dataset.sent;
});

const problem = document.getElementById("problem");
if (problem) problem.focus();

// Where a policy makes it matter, that the call was looked at is recorded. Opening the page alone changes nothing.
const viewed = document.getElementById("viewed");
if (viewed && document.visibilityState === "visible") {
  fetch(viewed.action, { method: "POST", body: new URLSearchParams(new FormData(viewed)), credentials: "same-origin" }).catch(() => {});
}
