// Keeps the page up to date: while somebody looks at it, this script fetches it again every two seconds and replaces the parts that are
// marked data-live. The page also works without it.
'use strict';
(() => {
  const follow = document.getElementById('follow');
  if (!follow || !document.querySelector('[data-live]')) return;
  // The notice after an action is shown once, not again after a reload.
  const here = new URL(location.href);
  if (here.searchParams.has('did')) {
    here.searchParams.delete('did');
    history.replaceState(null, '', here);
  }
  // A fetch that takes longer is given up: the laptop slept, or the network changed.
  const patience = 10000;
  let busy = false; // a fetch is under way
  let next = 0; // the timer of the next one

  // Without a connection the page is marked as stale, with the time that it shows.
  let shownAt = Date.now();
  const markStale = (words) => {
    for (const part of document.querySelectorAll('[data-live]')) part.classList.add('stale');
    say(`${words}: as of ${new Date(shownAt).toISOString().slice(11, 19)} UTC`, 'bad');
  };
  // The notice after an action goes away when the states on the page change; or after 20 seconds, because they may have changed before
  // the page was loaded.
  const states = () => [...document.querySelectorAll('#stand .badge, #timeline-live .badge, #list .badge, #list .tries, #paused b')].map((e) => e.textContent).join() + document.querySelectorAll('.tried tr').length;
  const firstStates = states();
  setTimeout(() => document.querySelector('.notice')?.remove(), 20000);

  const say = (text, tone) => {
    if (follow.textContent === text) return; // a screen reader reads it out each time it is set
    follow.hidden = false;
    follow.className = 'follow ' + tone;
    follow.textContent = text;
  };

  // An update must not take away the reader's focus, selected text or opened table. So morph keeps the old nodes (those with an id
  // wherever they have moved to), and changes only what differs in them.
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

  // Nor must an update move what somebody is about to click on. (If a context menu opens, there may be no pointerup; blur is that of the
  // window, because it does not bubble.)
  let held = false;
  addEventListener('pointerdown', () => { held = true; });
  for (const end of ['pointerup', 'pointercancel', 'contextmenu', 'blur']) {
    addEventListener(end, () => { held = false; });
  }

  const refresh = async () => {
    clearTimeout(next);
    if (busy || document.hidden) return;
    busy = true;
    const began = performance.now();
    try {
      const answer = await fetch(location.href, {headers: {Accept: 'text/html'}, signal: AbortSignal.timeout(patience)});
      const fresh = new DOMParser().parseFromString(await answer.text(), 'text/html');
      if (!answer.ok) {
        markStale('out of date'); // what the page shows is gone, or cannot be read
      } else if (!held) {
        for (const old of document.querySelectorAll('[data-live]')) {
          const twin = fresh.getElementById(old.id);
          if (twin) morph(old, twin); // this also removes the class stale
        }
        shownAt = Date.now();
        if (states() !== firstStates) document.querySelector('.notice')?.remove();
        say('live', 'good');
      }
    } catch {
      // Not at once: a browser that follows a link breaks off what the page fetches.
      if (Date.now() - shownAt > 5000) markStale('not connected');
    }
    busy = false;
    // A page that takes long is fetched less often.
    next = setTimeout(refresh, Math.max(2000, 4 * (performance.now() - began)));
  };
  document.addEventListener('visibilitychange', refresh);
  addEventListener('pageshow', refresh);
})();

// Applies a filter as soon as it changes; a text, when its field loses the focus or somebody presses Enter.
(() => {
  for (const form of document.querySelectorAll('form[data-apply]')) {
    form.querySelector('button').hidden = true;
    form.addEventListener('change', () => form.requestSubmit());
    // Leave empty fields out of the address.
    form.addEventListener('formdata', ({formData}) => {
      for (const [name, value] of [...formData]) {
        if (value === '') formData.delete(name);
      }
    });
  }
})();

// Copy buttons. They copy the text of the element whose id is in data-copy. Over plain http, except on localhost, a page may not use the clipboard: then the text is selected.
(() => {
  const showButtons = () => {
    for (const button of document.querySelectorAll('[data-copy]')) button.hidden = false;
  };
  showButtons();
  new MutationObserver(showButtons).observe(document.body, {childList: true, subtree: true, attributeFilter: ['hidden']});
  document.addEventListener('click', async (event) => {
    const button = event.target.closest('[data-copy]');
    if (!button) return;
    const from = document.getElementById(button.dataset.copy);
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
