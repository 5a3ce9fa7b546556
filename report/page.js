"use strict";
(() => {
    const WIDTH = 100000;
    const root = document.documentElement;
    const pictures = document.querySelector(".pictures");
    const windowNs = Number(pictures.dataset.ns);
    const svgs = [...pictures.querySelectorAll("svg")];
    const time = pictures.querySelector("svg.time");
    const memory = pictures.querySelector("svg.memory");
    const axes = [...pictures.querySelectorAll(".axis")];
    const least = Math.max(WIDTH / 4096, WIDTH * 20 / windowNs);
    const view = { at: 0, width: WIDTH };

    /* ---- numbers: the same digits as in the tables ---- */
    const three = (v) => v.toFixed(v < 9.995 ? 2 : v < 99.95 ? 1 : 0);
    const showTime = (ns) => {
        if (ns < 1000) return ns.toFixed(0) + " ns";
        let v = ns / 1000, u = 0;
        while (v >= 999.5 && u < 2) { v /= 1000; u++; }
        return three(v) + " " + ["us", "ms", "s"][u];
    };
    const showSize = (bytes) => {
        if (bytes < 1024) return bytes + " B";
        let v = bytes / 1024, u = 0;
        while (v >= 1023.995 && u < 5) { v /= 1024; u++; }
        return v.toFixed(2) + " " + ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"][u];
    };

    /* ---- zoom ---- */
    const drawAxis = (axis) => {
        const from = view.at / WIDTH * windowNs, length = view.width / WIDTH * windowNs;
        let distance = 1;
        for (let k = 0; length / distance > 10; k++) distance = k % 3 === 1 ? distance / 2 * 5 : distance * 2;
        const unit = distance >= 1e9 ? [1e9, "s"] : distance >= 1e6 ? [1e6, "ms"] : distance >= 1e3 ? [1e3, "us"] : [1, "ns"];
        axis.textContent = "";
        for (let n = Math.ceil(from / distance); n * distance <= from + length; n++) {
            const percent = 100 * (n * distance - from) / length;
            if (percent > 94) break;
            const label = document.createElement("span");
            label.textContent = Math.round(n * distance / unit[0]) + " " + unit[1];
            label.style.left = percent + "%";
            if (n % 2 || percent > 82) label.className = "wide";
            axis.append(label);
        }
    };
    const show = (at, width) => {
        view.width = Math.min(WIDTH, Math.max(least, width));
        view.at = Math.min(WIDTH - view.width, Math.max(0, at));
        for (const s of svgs) s.setAttribute("viewBox", view.at + " 0 " + view.width + " " + s.getAttribute("height"));
        axes.forEach(drawAxis);
    };
    const zoom = (factor, centre) => {
        const c = centre === undefined ? 0.5 : centre;
        const width = Math.min(WIDTH, Math.max(least, view.width * factor));
        show(view.at + c * (view.width - width), width);
    };
    const act = {
        in: () => zoom(0.5), out: () => zoom(2), all: () => show(0, WIDTH),
        left: () => show(view.at - view.width / 4, view.width), right: () => show(view.at + view.width / 4, view.width),
    };
    for (const b of pictures.querySelectorAll("button")) b.addEventListener("click", act[b.dataset.act]);
    pictures.tabIndex = 0;
    pictures.addEventListener("keydown", (e) => {
        const what = { "+": "in", "=": "in", "-": "out", "0": "all", ArrowLeft: "left", ArrowRight: "right" }[e.key];
        if (!what || e.ctrlKey || e.metaKey || e.altKey) return;
        act[what]();
        e.preventDefault();
    });
    const share = (e, svg) => {
        const box = svg.getBoundingClientRect();
        return (e.clientX - box.left) / box.width;
    };
    for (const svg of svgs) {
        let grip = null;
        svg.addEventListener("wheel", (e) => {
            if (!e.ctrlKey && !e.metaKey) return; /* a plain wheel scrolls the page */
            e.preventDefault();
            zoom(Math.exp(e.deltaY * 0.004), share(e, svg));
        }, { passive: false });
        svg.addEventListener("pointerdown", (e) => { grip = { x: share(e, svg), at: view.at }; });
        svg.addEventListener("pointermove", (e) => {
            if (!grip || e.buttons === 0) { grip = null; return; }
            if (view.width < WIDTH) show(grip.at + (grip.x - share(e, svg)) * view.width, view.width);
        });
        svg.addEventListener("pointerup", () => { grip = null; });
        svg.addEventListener("dblclick", (e) => zoom(0.25, share(e, svg)));
    }

    /* ---- tooltips: titles without their delay, under the finger as well ---- */
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    document.body.append(tip);
    const place = (e) => {
        const x = Math.min(e.clientX + 14, root.clientWidth - tip.offsetWidth - 8);
        const below = e.clientY + 18, y = below + tip.offsetHeight > root.clientHeight ? e.clientY - tip.offsetHeight - 12 : below;
        tip.style.transform = "translate(" + Math.max(8, x) + "px," + Math.max(8, y) + "px)";
    };
    const say = (e, text) => {
        tip.textContent = text;
        tip.hidden = !text;
        if (text) place(e);
    };
    for (const title of document.querySelectorAll("svg title")) {
        title.parentNode.dataset.tip = title.textContent;
        title.remove();
    }
    const light = (unit) => {
        time.classList.toggle("dim", unit !== undefined);
        for (const g of time.querySelectorAll("g.on")) g.classList.remove("on");
        if (unit !== undefined)
            for (const g of time.querySelectorAll('g[data-u="' + unit + '"]')) g.classList.add("on");
    };
    let lit;
    const point = (e) => {
        const on = e.target.closest("[data-tip]");
        const unit = on ? on.dataset.u : undefined;
        if (unit !== lit) light(lit = unit);
        say(e, on ? on.dataset.tip : "");
    };
    for (const svg of document.querySelectorAll("svg.time, svg.strip")) {
        svg.addEventListener("pointermove", point);
        svg.addEventListener("pointerleave", () => { tip.hidden = true; light(lit = undefined); });
    }

    /* ---- memory: all kinds at the pointer's time ---- */
    const times = memory.dataset.t.split(" ").map(Number);
    const kinds = Object.keys(memory.dataset).filter((k) => /^k[0-9]$/.test(k)).sort().reverse().map((k) => {
        const [name, ...bytes] = memory.dataset[k].split(" ");
        return { name, bytes: bytes.map(Number) };
    });
    memory.addEventListener("pointermove", (e) => {
        const x = view.at + share(e, memory) * view.width;
        let low = 0, high = times.length - 1;
        while (low < high) {
            const middle = (low + high + 1) >> 1;
            if (times[middle] <= x) low = middle; else high = middle - 1;
        }
        const total = kinds.reduce((sum, k) => sum + k.bytes[low], 0);
        say(e, showTime(x / WIDTH * windowNs) + ": " + showSize(total) + " live\n" +
            kinds.map((k) => k.name + " " + showSize(k.bytes[low])).join("\n"));
    });
    memory.addEventListener("pointerleave", () => { tip.hidden = true; });

    show(0, WIDTH);
    root.classList.add("js");
})();
