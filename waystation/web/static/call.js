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
