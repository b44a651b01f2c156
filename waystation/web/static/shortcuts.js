// Keyboard shortcuts: links with `data-key`, the buttons of a call, and a dialog that lists them all.
"use strict";
{
  const dialog = document.getElementById("shortcuts");
  const help = () => dialog.showModal();
  const button = document.getElementById("shortcuts-button");
  if (button) {
    button.hidden = false;
    button.addEventListener("click", help);
  }

  const focusOn = (selector) => {
    const target = document.querySelector(selector);
    if (target) target.focus();
  };
  // Shortcuts only move the focus to a button, so a slip of the finger answers nothing.
  const goTo = { a: ".decide button[value=approve]", r: ".answer button[value=reject]", c: ".answer textarea" };

  document.addEventListener("keydown", (event) => {
    const field = event.target.closest("input:not([type=checkbox]), select, textarea, [contenteditable]");
    if (field || dialog.open || event.ctrlKey || event.altKey || event.metaKey || event.defaultPrevented) return;
    const link = /^[a-z]$/.test(event.key) && document.querySelector(`a[data-key=${event.key}]`);
    if (event.key === "?") help();
    else if (link) link.click();
    else if (event.key in goTo && document.getElementById("call")) focusOn(goTo[event.key]);
    else return;
    event.preventDefault();
  });

  // The list links to a call at one of its buttons.
  const at = location.hash.slice(1);
  if (at in goTo) focusOn(goTo[at]);
}
