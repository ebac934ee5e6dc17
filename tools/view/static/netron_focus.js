'use strict';
// Runs in Netron's frame before Netron, which focuses its drawing once that is there: in the middle of what somebody
// types beside it. The frame takes the focus when it is pressed (Netron's drawing keeps the browser from doing so), and
// may move it only where it has it.
addEventListener('pointerdown', focus.bind(window), true);
for (const owner of [HTMLElement.prototype, SVGElement.prototype]) {
    const original = owner.focus;
    owner.focus = function (...options) { if (document.hasFocus()) original.apply(this, options); };
}
