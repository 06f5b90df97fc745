// The layout of a workflow as a layered graph (Sugiyama's method).  No imports: tests run it alone.
//
// The layer of a step is the longest path of needs to the step.  An edge across more than one
// layer has a dummy node in each layer between, which keeps a free lane for the edge.

const WIDTH = 190;
const HEIGHT = 52;
const GAP_X = 64;
const GAP_Y = 20;
const MARGIN = 12;
const SWEEPS = 12;
const MOST_NODES = 3000;	// steps and dummy nodes

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

// The layer of each step.  Steps cannot need each other in a circle.
function layersOf(steps) {
	const layers = new Map();
	const left = new Map(steps.map((step) => [step.name, step.needs.length]));
	const after = new Map(steps.map((step) => [step.name, []]));
	let ready = steps.filter((step) => step.needs.length === 0).map((step) => step.name);

	for (const step of steps)
		for (const name of step.needs)
			after.get(name).push(step.name);
	for (let layer = 0; ready.length > 0; layer++) {
		const next = [];

		for (const name of ready) {
			layers.set(name, layer);
			for (const follower of after.get(name)) {
				left.set(follower, left.get(follower) - 1);
				if (left.get(follower) === 0)
					next.push(follower);
			}
		}
		ready = next;
	}
	return layers;
}

// The number of pairs of edges that cross between two neighbouring layers.
function crossings(layers) {
	let sum = 0;

	for (const layer of layers) {
		const ends = layer.flatMap((node) => node.after.map((end) => end.row).sort((a, b) => a - b));

		for (let i = 0; i < ends.length; i++)
			for (let j = i + 1; j < ends.length; j++)
				sum += ends[j] < ends[i] ? 1 : 0;
	}
	return sum;
}

const number = (layer) => layer.forEach((node, row) => {
	node.row = row;
});

// Order each layer by the mean row of the neighbours, forwards and backwards in turn.  Keep
// the order with the fewest crossings.
function order(layers) {
	layers.forEach(number);
	let best = layers.map((layer) => [...layer]);
	let fewest = crossings(layers);

	for (let sweep = 0; sweep < SWEEPS && fewest > 0; sweep++) {
		const side = sweep % 2 === 0 ? 'before' : 'after';

		for (const layer of sweep % 2 === 0 ? layers : [...layers].reverse()) {
			const wanted = new Map(layer.map((node) => [node, node[side].length > 0 ? mean(node[side].map((end) => end.row)) : node.row]));

			layer.sort((a, b) => wanted.get(a) - wanted.get(b));
			number(layer);
		}
		const found = crossings(layers);

		if (found < fewest) {
			fewest = found;
			best = layers.map((layer) => [...layer]);
		}
	}
	best.forEach(number);
	return best;
}

// Set the middle of each node of a layer as near to its wanted place as the order and the
// sizes allow: neighbours that would overlap become a block around their common mean.
function place(layer, wanted) {
	const blocks = [];
	let offset = 0;

	layer.forEach((node, i) => {
		offset += i === 0 ? 0 : (layer[i - 1].size + node.size) / 2 + GAP_Y;
		const weight = node.step ? 1 : 4;
		let block = { nodes: [[node, offset]], sum: (wanted(node) - offset) * weight, weight };

		while (blocks.length > 0 && blocks.at(-1).sum / blocks.at(-1).weight > block.sum / block.weight) {
			const last = blocks.pop();

			block = { nodes: [...last.nodes, ...block.nodes], sum: last.sum + block.sum, weight: last.weight + block.weight };
		}
		blocks.push(block);
	});
	for (const block of blocks)
		for (const [node, at] of block.nodes)
			node.y = block.sum / block.weight + at;
}

// The boxes of the steps, and the edges as lists of points; null if there are too many.  An edge
// is horizontal within a layer, and changes its height between two layers only.
export function layout(all) {
	const known = new Set(all.map((step) => step.name));
	const steps = all.map((step) => ({ name: step.name, needs: [...new Set(step.needs ?? [])].filter((name) => known.has(name)) }));
	const depth = layersOf(steps);
	const nodes = new Map(steps.map((step) => [step.name, { step: step.name, size: HEIGHT, layer: depth.get(step.name), before: [], after: [] }]));
	const layers = Array.from({ length: Math.max(...depth.values()) + 1 }, () => []);
	const edges = [];
	let made = 0;

	for (const node of nodes.values())
		layers[node.layer].push(node);
	for (const step of steps)
		for (const name of step.needs) {
			const chain = [nodes.get(name)];
			const to = nodes.get(step.name);

			made += to.layer - chain[0].layer;
			if (made + nodes.size > MOST_NODES)
				return null;
			for (let layer = chain[0].layer + 1; layer < to.layer; layer++) {
				chain.push({ size: 0, layer, before: [], after: [] });
				layers[layer].push(chain.at(-1));
			}
			chain.push(to);
			for (let i = 1; i < chain.length; i++) {
				chain[i - 1].after.push(chain[i]);
				chain[i].before.push(chain[i - 1]);
			}
			edges.push({ from: name, to: step.name, chain });
		}
	const ordered = order(layers);

	for (const layer of ordered)
		place(layer, (node) => node.row * (HEIGHT + GAP_Y));
	for (let sweep = 0; sweep < SWEEPS; sweep++)
		for (const layer of sweep % 2 === 0 ? ordered : [...ordered].reverse())
			place(layer, (node) => {
				const near = [...node.before, ...node.after].map((end) => end.y);

				return near.length > 0 ? mean(near) : node.y;
			});
	const every = ordered.flat();
	const top = Math.min(...every.map((node) => node.y - node.size / 2)) - MARGIN;
	const x = (layer) => MARGIN + layer * (WIDTH + GAP_X);

	return {
		width: x(layers.length) - GAP_X + MARGIN,
		height: Math.max(...every.map((node) => node.y + node.size / 2)) + MARGIN - top,
		boxes: new Map([...nodes].map(([name, node]) => [name, { x: x(node.layer), y: node.y - HEIGHT / 2 - top, width: WIDTH, height: HEIGHT }])),
		edges: edges.map(({ from, to, chain }) => ({
			from, to, points: chain.flatMap((node, i) => [
				...i > 0 ? [{ x: x(node.layer), y: node.y - top }] : [],
				...i < chain.length - 1 ? [{ x: x(node.layer) + WIDTH, y: node.y - top }] : [],
			]),
		})),
	};
}
