// Show at once that a form is being sent, and ignore a second click. The server would count the form once anyway.
"use strict";

const SENDING = "Sending…";

// The button keeps its value, which the form sends, so it is not disabled.
function startSending(form, button) {
  form.dataset.sent = "1";
  if (!button || ["begin", "again"].includes(button.name)) return; // these open the form for edits
  button.dataset.text = button.textContent;
  button.textContent = SENDING;
  button.setAttribute("aria-busy", "true");
  document.getElementById("sending").textContent = SENDING;
}

function endSending(form) {
  delete form.dataset.sent;
  for (const button of form.querySelectorAll("button[aria-busy]")) {
    button.textContent = button.dataset.text;
    button.removeAttribute("aria-busy");
  }
  document.getElementById("sending").textContent = "";
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.getAttribute("method") !== "post") return;
  if (!form.dataset.sent) return startSending(form, event.submitter);
  event.preventDefault();
  event.stopImmediatePropagation();
});
// After "Back" the form may be sent again; the server decides whether it counts.
window.addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("form[data-sent]")) endSending(form);
});
