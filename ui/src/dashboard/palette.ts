/** Colours of curves that also those tell apart who see few (Okabe and Ito 2008), lighter or darker for the page. */

const LIGHT = ['#0072b2', '#d55e00', '#008f68', '#a8487e', '#8a6d00', '#2f8fc4', '#5b4b8a', '#444444']
const DARK = ['#5db4ea', '#f2884a', '#35c79c', '#e79ac6', '#e8cf4a', '#9fd3f3', '#b3a4e3', '#c9c9c9']
const DASHES: number[][] = [[], [6, 4], [2, 3], [10, 3, 2, 3]]

export function colourOf(index: number, dark: boolean): string {
  const palette = dark ? DARK : LIGHT
  return palette[index % palette.length]!
}

/** Beyond the palette's length the dashes tell curves apart. */
export function dashesOf(index: number): number[] {
  return DASHES[Math.floor(index / LIGHT.length) % DASHES.length]!
}

export const HELD_OUT_DASHES = [5, 4]
