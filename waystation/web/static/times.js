// Show times in the browser's time zone. Without this script, they are in the server's zone.
"use strict";
{
  const pad = (number) => String(number).padStart(2, "0");
  const dateOf = (moment) => `${moment.getFullYear()}-${pad(moment.getMonth() + 1)}-${pad(moment.getDate())}`;
  const names = new Intl.DateTimeFormat("en", { timeZoneName: "short" });
  const zoneOf = (moment) => names.formatToParts(moment).find((part) => part.type === "timeZoneName").value;

  const format = (moment, seconds) => {
    const time = [moment.getHours(), moment.getMinutes(), ...(seconds ? [moment.getSeconds()] : [])].map(pad).join(":");
    const date = dateOf(moment) === dateOf(new Date()) ? "" : `${dateOf(moment)} `;
    return `${date}${time} ${zoneOf(moment)}`;
  };

  const localize = () => {
    for (const each of document.querySelectorAll("time[datetime]:not([data-local])")) {
      each.dataset.local = "";
      const moment = new Date(each.dateTime);
      if (Number.isNaN(moment.getTime())) continue;
      // An age such as `3 hours` keeps its text, and its title shows the exact time.
      if (each.classList.contains("age")) each.title = format(moment, true);
      else each.textContent = format(moment, /\d:\d\d:\d\d/.test(each.textContent));
    }
  };

  localize();
  // Other scripts add rows to open pages.
  new MutationObserver(localize).observe(document.getElementById("main"), { childList: true, subtree: true });
}
