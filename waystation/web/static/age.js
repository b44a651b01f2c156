// Say how old a page is whose lists the server could not read again. Screen readers say it once, not at each refresh.
"use strict";

function showAge(seconds) {
  const note = document.getElementById("stale");
  const text = seconds ? note.dataset.late : "";
  if (note.textContent !== text) note.textContent = text;
  document.getElementById("as-of").textContent = seconds ? `As of ${seconds} s ago.` : "";
}

const ageOf = (answer) => Number(answer.headers.get("age"));
