// Show and enter times in the browser's time zone. Without this script, they are in the server's zone.
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

  // What a person enters is sent with the offset of the browser's zone.
  const isoOf = (moment) => `${dateOf(moment)}T${pad(moment.getHours())}:${pad(moment.getMinutes())}`;
  const offsetOf = (moment) => {
    const minutes = -moment.getTimezoneOffset();
    const hours = Math.floor(Math.abs(minutes) / 60);
    return `${minutes < 0 ? "-" : "+"}${pad(hours)}:${pad(Math.abs(minutes) % 60)}`;
  };
  for (const field of document.querySelectorAll("input[type=datetime-local]")) {
    if (field.dataset.moment) field.value = field.defaultValue = isoOf(new Date(field.dataset.moment));
    const zone = field.closest(".field").querySelector(".zone");
    if (zone) zone.textContent = zoneOf(new Date());
    field.form.addEventListener("formdata", ({ formData }) => {
      if (field.value) formData.set(field.name, field.value + offsetOf(new Date(field.value)));
    });
  }

  localize();
  // Other scripts add rows to open pages.
  new MutationObserver(localize).observe(document.getElementById("main"), { childList: true, subtree: true });
}
