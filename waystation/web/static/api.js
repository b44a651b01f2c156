// Sends the requests of the page that describes the JSON API, and shows the responses.
"use strict";

const LONGEST = 200000; // characters to show

async function send(form) {
  let path = form.dataset.path;
  const query = new URLSearchParams(), headers = {};
  for (const field of form.elements) {
    const place = field.dataset.in;
    if (place === "path") path = path.replace(`{${field.name}}`, encodeURIComponent(field.value));
    if (place === "query" && field.value) query.append(field.name, field.value);
    if (place === "header" && field.value) headers[field.name] = field.value;
  }
  const options = { method: form.dataset.method, headers };
  if (options.method !== "GET") {
    headers["Content-Type"] = "application/json";
    options.body = form.elements.body ? form.elements.body.value : "{}";
  }
  const stop = new AbortController();
  form.stop = () => stop.abort();
  return fetch(path + (query.size ? `?${query}` : ""), { ...options, signal: stop.signal });
}

async function show(response, reply) {
  const reader = response.body.getReader(), decoder = new TextDecoder();
  const isStream = (response.headers.get("Content-Type") || "").startsWith("text/event-stream");
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    text = (text + decoder.decode(value, { stream: true })).slice(0, LONGEST);
    if (isStream) reply.textContent = `${response.status}\n${text}`;
  }
  try {
    text = JSON.stringify(JSON.parse(text), null, 2);
  } catch { /* not JSON */ }
  reply.textContent = `${response.status} ${response.statusText}\n${text}`;
}

for (const form of document.querySelectorAll("form.try")) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (form.stop) form.stop();
    const reply = form.querySelector(".reply");
    reply.hidden = false;
    reply.textContent = "…";
    try {
      await show(await send(form), reply);
    } catch (error) {
      if (error.name !== "AbortError") reply.textContent = String(error);
    }
  });
}
