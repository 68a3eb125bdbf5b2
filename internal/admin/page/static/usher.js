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
  // The server says something every ten seconds. A connection that is silent for longer is
  // dead, though nobody was told: a laptop slept, or a network changed.
  const patience = 25000;
  let silence = 0; // a timer
  let stream = null;
  let busy = false;
  let again = false;

  // What is shown of a time that is over looks like it, and says of when it is.
  let shown = Date.now();
  const lost = (words) => {
    for (const part of document.querySelectorAll('[data-live]')) part.classList.add('stale');
    say(`${words}: as of ${new Date(shown).toISOString().slice(11, 19)} UTC`, 'bad');
  };
  // The message after something was done goes when what it speaks of has changed; or else after a while, as it may have
  // changed before this page was made.
  const standing = () => [...document.querySelectorAll('#stand .badge, .timeline li:first-child, #list .badge, #list .tries, #paused b, .attempts time')].map((e) => e.dateTime ?? e.id + (e.querySelector('.badge') ?? e).textContent).join();
  const first = standing();
  setTimeout(() => document.querySelector('.notice')?.remove(), 20000);

  const say = (text, tone) => {
    if (follow.textContent === text) return; // it is read out each time that it is set
    follow.hidden = false;
    follow.className = 'follow ' + tone;
    follow.textContent = text;
  };

  // A new part must not take away what its reader is at: focus, a selected text, an opened
  // table. So nodes stay where they can, those with an id wherever they have moved to,
  // and only what differs in them is changed.
  const morph = (old, fresh) => {
    if (old.isEqualNode(fresh)) return old;
    if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || old.id !== fresh.id) return fresh;
    if (old.nodeType !== Node.ELEMENT_NODE) {
      old.data = fresh.data;
      return old;
    }
    for (const {name} of [...old.attributes]) {
      if (!fresh.hasAttribute(name) && name !== 'open') old.removeAttribute(name);
    }
    for (const {name, value} of fresh.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    const known = new Map([...old.children].filter((c) => c.id).map((c) => [c.id, c]));
    const nameless = [...old.childNodes].filter((c) => !c.id);
    let place = old.firstChild;
    for (const child of [...fresh.childNodes]) {
      const twin = child.id ? known.get(child.id) : nameless.shift();
      const kept = twin ? morph(twin, child) : child;
      if (kept === place) {
        place = place.nextSibling;
      } else {
        old.insertBefore(kept, place);
      }
    }
    while (place) {
      const gone = place;
      place = place.nextSibling;
      gone.remove();
    }
    return old;
  };

  // Nor must it move what somebody is about to click on. (What opens a menu may never be
  // told of its end; and blur is the window's alone: it does not bubble.)
  let held = false;
  addEventListener('pointerdown', () => { held = true; });
  for (const end of ['pointerup', 'pointercancel', 'contextmenu', 'blur']) {
    addEventListener(end, () => { held = false; });
  }

  const refresh = async () => {
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    again = false;
    const began = performance.now();
    try {
      const answer = await fetch(location.href, {headers: {Accept: 'text/html'}, signal: AbortSignal.timeout(patience)});
      const fresh = new DOMParser().parseFromString(await answer.text(), 'text/html');
      again ||= held;
      if (!answer.ok) {
        lost('out of date'); // what it shows is gone, or can't be had
      } else if (!held) {
        for (const old of document.querySelectorAll('[data-live]')) {
          const twin = fresh.getElementById(old.id);
          if (twin) morph(old, twin); // which takes the class away, too
        }
        shown = Date.now();
        if (standing() !== first) document.querySelector('.notice')?.remove();
        if (stream?.readyState === EventSource.OPEN) say('live', 'good');
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
    stream.addEventListener('change', () => { // the first comes at once
      expect();
      refresh();
    });
    expect();
    stream.onerror = () => {
      lost('not connected');
      if (stream.readyState === EventSource.CLOSED) {
        close();
        setTimeout(open, 5000);
      }
    };
  };
  const close = () => {
    clearTimeout(silence);
    stream?.close();
    stream = null;
  };
  const expect = () => {
    clearTimeout(silence);
    silence = setTimeout(() => {
      lost('not connected');
      close();
      open();
    }, patience);
  };
  document.addEventListener('visibilitychange', () => document.hidden ? close() : open());
  addEventListener('pagehide', close);
  addEventListener('pageshow', open);
  open();
})();

// A filter is applied as soon as it is changed; text once somebody has left its field, or pressed Enter.
(() => {
  for (const form of document.querySelectorAll('form[data-apply]')) {
    form.querySelector('button').hidden = true;
    form.addEventListener('change', () => form.requestSubmit());
    // What is not set need not stand in the address.
    form.addEventListener('formdata', ({formData}) => {
      for (const [name, value] of [...formData]) {
        if (value === '') formData.delete(name);
      }
    });
  }
})();

// What can be copied: the text of the element that data-copy names, or else that of the <pre> beside the button. A
// page that did not come over https, nor from this machine, may not use the clipboard: then the text is selected.
(() => {
  const mark = (root) => {
    for (const button of root.querySelectorAll('[data-copy]')) button.hidden = false;
  };
  mark(document);
  new MutationObserver(() => mark(document)).observe(document.body, {childList: true, subtree: true, attributeFilter: ['hidden']});
  document.addEventListener('click', async (event) => {
    const button = event.target.closest('[data-copy]');
    if (!button) return;
    const from = button.dataset.copy ? document.getElementById(button.dataset.copy) : button.parentElement.querySelector('pre');
    const label = button.dataset.label ??= button.textContent;
    try {
      await navigator.clipboard.writeText(from.textContent);
      button.textContent = 'Copied';
    } catch {
      getSelection().selectAllChildren(from);
      button.textContent = 'Selected';
    }
    setTimeout(() => { button.textContent = label; }, 2000);
  });
})();
