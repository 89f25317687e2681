/** Restore values of steps that the writer left out because others determine them; see `step_columns.py`. */

/** @typedef {import("./format.js").Values} Values */

/**
 * Starts of the entries of lanes from the gaps after the end of each previous entry.
 * @param {Values} gap @param {Values} duration @param {Values} first
 */
export function startsOf(gap, duration, first) {
  const start = new Float64Array(gap.length);
  for (let lane = 0; lane + 1 < first.length; lane++) {
    let end = 0;
    for (let i = first[lane]; i < first[lane + 1]; i++) {
      start[i] = end + gap[i];
      end = start[i] + duration[i];
    }
  }
  return start;
}

/** Role of a step in messages, for `expandValues` and `matchInOrder`. */
export const ROLE = { none: 0, wait: 1, send: 2, receive: 3 };

/**
 * Values of all steps of a column that leaves out some of them.
 * @param {Values} values @param {import("./format.js").Column} column @param {Uint8Array} role @param {Values|null} partner
 * @returns {Values}
 */
export function expandValues(values, column, role, partner) {
  if (Array.isArray(column) || values.length === role.length) return values;
  const { waits, rest, ends } = column;
  const isWide = values instanceof Uint32Array || values instanceof Float64Array;
  const all = isWide ? new Float64Array(role.length) : new Int32Array(role.length);
  let next = 0;
  for (let i = 0; i < all.length; i++) {
    const other = ends && partner ? partner[i] : -1;
    if (role[i] === ROLE.wait && waits) continue;
    if (role[i] === ROLE.none && rest !== undefined) all[i] = rest;
    else all[i] = other >= 0 && other < i ? all[other] : values[next++];
  }
  if (waits) for (let i = all.length - 2; i >= 0; i--) if (role[i] === ROLE.wait) all[i] = all[i + 1];
  return all;
}

/** Matching steps from the offset that the first step of each message stores. @param {Values} offset */
export function partnersOf(offset) {
  const partner = new Int32Array(offset.length).fill(-1);
  for (let i = 0; i < offset.length; i++) {
    if (!offset[i]) continue;
    partner[i] = i + offset[i];
    partner[i + offset[i]] = i;
  }
  return partner;
}

/**
 * Awaited rank of each wait: the peer of the waiting step plus the stored difference; -1 for other steps.
 * @param {Values} difference @param {Values} peer @param {Uint8Array} role
 */
export function awaitedRanks(difference, peer, role) {
  const awaited = new Int32Array(role.length).fill(-1);
  let next = 0;
  for (let i = 0; i < role.length; i++) if (role[i] === ROLE.wait) awaited[i] = difference[next++] + (i + 1 < peer.length ? peer[i + 1] : -1);
  return awaited;
}

/**
 * Match the k-th send from one rank to another with the k-th receive there. Sends are collected by
 * destination; within one destination they are sorted by source, because the lanes are sorted by rank.
 * @param {Values} peer @param {Values} laneFirst @param {Values} laneRank
 * @param {Uint8Array} role
 */
export function matchInOrder(peer, laneFirst, laneRank, role) {
  const partner = new Int32Array(peer.length).fill(-1);
  let ranks = 0;
  for (const rank of laneRank) ranks = Math.max(ranks, rank + 1);
  for (let i = 0; i < peer.length; i++) if (peer[i] >= ranks) ranks = peer[i] + 1;
  const bucket = new Uint32Array(ranks + 1);
  for (let i = 0; i < peer.length; i++) if (role[i] === ROLE.send && peer[i] >= 0) bucket[peer[i] + 1]++;
  for (let rank = 0; rank < ranks; rank++) bucket[rank + 1] += bucket[rank];
  const filled = bucket.slice(), sends = new Uint32Array(bucket[ranks]), source = new Uint32Array(bucket[ranks]);
  for (let lane = 0; lane < laneRank.length; lane++) {
    for (let i = laneFirst[lane]; i < laneFirst[lane + 1]; i++) {
      if (role[i] !== ROLE.send || peer[i] < 0) continue;
      const place = filled[peer[i]]++;
      sends[place] = i;
      source[place] = laneRank[lane];
    }
  }
  const next = new Uint32Array(ranks);
  for (let lane = 0, rank = -1; lane < laneRank.length; lane++) {
    if (laneRank[lane] !== rank) {
      rank = laneRank[lane];
      next.fill(bucket[rank + 1]);
      for (let place = bucket[rank + 1] - 1; place >= bucket[rank]; place--) next[source[place]] = place;
    }
    for (let i = laneFirst[lane]; i < laneFirst[lane + 1]; i++) {
      if (role[i] !== ROLE.receive || peer[i] < 0) continue;
      const place = next[peer[i]];
      if (place >= bucket[rank + 1] || source[place] !== peer[i]) continue;
      next[peer[i]]++;
      partner[i] = sends[place];
      partner[sends[place]] = i;
    }
  }
  return partner;
}
