// Event streams that only a visible page keeps open. Browsers allow six connections per server, so streams of pages in
// background tabs would leave none for the page that a person is looking at.
"use strict";

// Open the stream of the address that `address()` returns now, or none if it returns nothing. `start(source)` sets the
// handlers of a new stream. The page calls `stream.restart()` to open another address, and `stream.close()` at the end.
function liveStream(address, start) {
  const RETRY_MS = 5000;
  let source = null;
  let timer = 0;
  let isOver = false;

  const open = () => {
    clearTimeout(timer);
    if (source) source.close();
    source = null;
    const url = !isOver && !document.hidden && address();
    if (!url) return;
    const opened = (source = new EventSource(url));
    start(opened);
    // EventSource connects again after a lost connection, but not after a refusal.
    opened.addEventListener("error", () => {
      if (source === opened && opened.readyState === EventSource.CLOSED) timer = setTimeout(open, RETRY_MS);
    });
  };
  document.addEventListener("visibilitychange", open);
  open();
  return {
    restart: open,
    close: () => {
      isOver = true;
      document.removeEventListener("visibilitychange", open);
      open();
    },
  };
}
