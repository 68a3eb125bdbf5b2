// Follows what happens: the server says that something has changed, and the parts of
// this page that are marked data-live are fetched again and put in place of the old
// ones. Without this script the page can be read and used all the same.
'use strict';
(() => {
  const follow = document.getElementById('follow');
  if (!follow || !document.querySelector('[data-live]')) return;
  // What was done is said once, not again with each reload.
  const here = new URL(location.href);
  if (here.searchParams.has('did')) {
    here.searchParams.delete('did');
    history.replaceState(null, '', here);
  }
  let stream = null;
  let busy = false;
  let again = false;

  const say = (text, tone) => {
    follow.hidden = false;
    follow.className = 'follow ' + tone;
    follow.textContent = text;
  };

  // A new part must not take away what its reader is at: focus, an opened table, a
  // selected text.
  const swap = (old, fresh) => {
    if (old.innerHTML === fresh.innerHTML) return;
    const selection = getSelection();
    if (selection && !selection.isCollapsed && old.contains(selection.anchorNode)) return;
    const focused = old.contains(document.activeElement) ? document.activeElement : null;
    const key = focused && (focused.id ? '#' + CSS.escape(focused.id) :
      focused.getAttribute('href') ? 'a[href="' + CSS.escape(focused.getAttribute('href')) + '"]' : 'summary');
    for (const open of old.querySelectorAll('details[open][id]')) {
      const twin = fresh.querySelector('#' + CSS.escape(open.id));
      if (twin) twin.open = true;
    }
    old.replaceChildren(...fresh.childNodes);
    if (key) old.querySelector(key)?.focus({preventScroll: true});
  };

  const refresh = async () => {
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    again = false;
    const began = performance.now();
    try {
      const answer = await fetch(location.href, {headers: {Accept: 'text/html'}});
      const fresh = new DOMParser().parseFromString(await answer.text(), 'text/html');
      if (answer.ok) {
        for (const old of document.querySelectorAll('[data-live]')) {
          const twin = fresh.getElementById(old.id);
          if (twin) swap(old, twin);
        }
      }
    } catch {
      // usher is away: the stream notices, and says so
    }
    // A page that is costly to make is asked for less often.
    setTimeout(() => {
      busy = false;
      if (again) refresh();
    }, Math.max(500, 4 * (performance.now() - began)));
  };

  // Browsers allow a handful of connections to one server over all tabs: one that
  // nobody looks at must not hold one.
  const open = () => {
    if (stream || document.hidden) return;
    stream = new EventSource('/api/events');
    stream.onopen = () => say('live', 'good');
    stream.addEventListener('change', refresh);
    stream.onerror = () => {
      say('not connected', 'bad');
      if (stream.readyState === EventSource.CLOSED) {
        stream = null;
        setTimeout(open, 5000);
      }
    };
  };
  const close = () => {
    stream?.close();
    stream = null;
  };
  document.addEventListener('visibilitychange', () => document.hidden ? close() : open());
  addEventListener('pagehide', close);
  addEventListener('pageshow', open);
  open();
})();
