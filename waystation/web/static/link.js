// The token of a link stands behind the `#`, which browsers send to no server. Sent on in a body, it is in no log.
"use strict";

const token = new URLSearchParams(location.hash.slice(1)).get("link");
if (token) {
  const form = document.getElementById("link");
  form.elements.link.value = token;
  history.replaceState(null, "", location.pathname);
  form.submit();
}
