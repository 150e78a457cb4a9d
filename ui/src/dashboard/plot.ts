/** Draws curves on a canvas: axes at round numbers, lines and points, and a line where the reader points. */

import { bounds, labels, powers, ticks } from './ticks'

export interface Line {
  label: string
  /** The label where the runs' colours are explained elsewhere. */
  short: string
  colour: string
  dashes: number[]
  /** Ascending in x; an unknown value leaves a gap. */
  points: [x: number, y: number | null][]
  /** Ascending in x: an interval around the curve. */
  band?: Band
  /** How many runs each point is a mean of. */
  counts?: number[]
}

export type Band = [x: number, low: number, high: number][]

export interface Look {
  ink: string
  faint: string
  grid: string
  paper: string
}

export const LIGHT: Look = { ink: '#1c2128', faint: '#5b6470', grid: '#e8eaee', paper: '#ffffff' }
export const DARK: Look = { ink: '#e4e7ec', faint: '#9aa4b2', grid: '#262c36', paper: '#14181f' }

interface Frame {
  width: number
  height: number
}

/** What a chart shows of its lines. */
export interface Sight {
  /** The values' axis begins at 0. */
  fromZero: boolean
  /** Values are shares of 1, written in percent. */
  isShare: boolean
  /** The values' axis is logarithmic: what is not above 0 has no place on it. */
  isLog: boolean
  /** Places are whole numbers. */
  isWhole: boolean
  /** Where the axis begins and ends; null for the line's own end. */
  from: number | null
  to: number | null
}

const FONT = '11px ui-sans-serif, system-ui, sans-serif'
const LEFT = 52
const RIGHT = 10
const TOP = 8
const BOTTOM = 22
const MANY_POINTS = 60
/** A line that goes up and down so many widths of the chart fills its columns of pixels: upright bars look the same, and are painted ten times as fast. */
const STEEP = 4

/** Where a place of the data is on the paper, in pixels; made for one drawing. */
export class Scale {
  readonly x: [number, number]
  /** Of the values, or of their logarithms (base 10). */
  readonly y: [number, number]

  constructor(
    lines: Line[],
    readonly sight: Sight,
    readonly frame: Frame,
  ) {
    let [from, to] = [Infinity, -Infinity]
    for (const { points } of lines) {
      if (points.length === 0) continue
      from = Math.min(from, points[0]![0])
      to = Math.max(to, points.at(-1)![0])
    }
    from = sight.from ?? from
    to = sight.to ?? to
    this.x = from < to ? [from, to] : [from - 0.5, from + 0.5]
    let [least, greatest] = [Infinity, -Infinity]
    const include = (x: number, y: number | null): void => {
      if (y === null || x < from || x > to || (sight.isLog && y <= 0)) return
      if (y < least) least = y
      if (y > greatest) greatest = y
    }
    for (const { points, band } of lines) {
      for (const [x, y] of points) include(x, y)
      for (const [x, low, high] of band ?? []) {
        include(x, low)
        include(x, high)
      }
    }
    const ends = least <= greatest ? [least, greatest] : []
    this.y = sight.isLog ? bounds(ends.map(Math.log10), false) : bounds(ends, sight.fromZero)
  }

  atX(x: number): number {
    return LEFT + ((x - this.x[0]) / (this.x[1] - this.x[0])) * (this.frame.width - LEFT - RIGHT)
  }

  atY(y: number): number {
    const room = this.frame.height - TOP - BOTTOM
    const value = this.sight.isLog ? Math.log10(Math.max(y, Number.MIN_VALUE)) : y
    return TOP + room - ((value - this.y[0]) / (this.y[1] - this.y[0])) * room
  }

  /** The inverse of `atX`, within the axis. */
  xAt(pixel: number): number {
    const x = this.x[0] + ((pixel - LEFT) / (this.frame.width - LEFT - RIGHT)) * (this.x[1] - this.x[0])
    return Math.min(Math.max(x, this.x[0]), this.x[1])
  }

  /** The points on the paper, and one beyond each of its edges that lines lead to. */
  seen(points: Line['points']): Line['points'] {
    if (this.sight.from === null && this.sight.to === null) return points
    const first = points.findIndex(([x]) => x >= this.x[0])
    const last = points.findLastIndex(([x]) => x <= this.x[1])
    return first < 0 || last < 0 ? [] : points.slice(Math.max(0, first - 1), last + 2)
  }
}

/** The point there, or between two points the one before, for held-out steps are fewer; null before the first and after the last. */
export function pointAt(points: Line['points'], x: number): [x: number, y: number | null] | null {
  const last = points.at(-1)
  return last && x <= last[0] ? (points.findLast(([at]) => at <= x) ?? null) : null
}

/** Draws all of a chart but what the reader points at. */
export function draw(paper: CanvasRenderingContext2D, lines: Line[], scale: Scale, look: Look): void {
  paper.font = FONT
  paper.lineWidth = 1
  paper.setLineDash([])
  axes(paper, scale, look)
  paper.save()
  paper.beginPath()
  paper.rect(LEFT - 3, 0, scale.frame.width - LEFT - RIGHT + 6, scale.frame.height)
  paper.clip()
  for (const line of lines) area(paper, line, scale)
  for (const line of lines) curve(paper, line, scale)
  paper.restore()
}

/** Draws where the reader points, and the part that is being chosen, over a chart. */
export function mark(paper: CanvasRenderingContext2D, lines: Line[], scale: Scale, look: Look, cursor: number | null, chosen: [number, number] | null): void {
  paper.setLineDash([])
  paper.lineWidth = 1
  const floor = scale.frame.height - BOTTOM
  if (chosen) {
    const [left, right] = chosen.map((x) => scale.atX(x)).sort((a, b) => a - b) as [number, number]
    paper.globalAlpha = 0.18
    paper.fillStyle = look.faint
    paper.fillRect(left, TOP, right - left, floor - TOP)
    paper.globalAlpha = 1
  }
  if (cursor === null || cursor < scale.x[0] || cursor > scale.x[1]) return
  stroke(paper, look.faint, [[scale.atX(cursor), TOP], [scale.atX(cursor), floor]])
  for (const { points, colour } of lines) {
    const pointed = points.find(([x]) => x === cursor)
    if (!pointed || pointed[1] === null || (scale.sight.isLog && pointed[1] <= 0)) continue
    paper.fillStyle = colour
    dot(paper, scale.atX(pointed[0]), scale.atY(pointed[1]), 4.5)
  }
}

/** The chart as a picture of its own, with its title and what its lines are. */
export function picture(title: string, lines: Line[], sight: Sight, look: Look): Promise<Blob> {
  const frame = { width: 720, height: 360 }
  const [margin, head, row] = [20, 44, 20]
  const ratio = 2
  const canvas = document.createElement('canvas')
  canvas.width = (frame.width + 2 * margin) * ratio
  canvas.height = (head + frame.height + margin + lines.length * row) * ratio
  const paper = canvas.getContext('2d')!
  paper.scale(ratio, ratio)
  paper.fillStyle = look.paper
  paper.fillRect(0, 0, canvas.width, canvas.height)
  paper.fillStyle = look.ink
  paper.font = 'bold 15px sans-serif'
  paper.fillText(title, margin, 28)
  paper.translate(margin, head)
  draw(paper, lines, new Scale(lines, sight, frame), look)
  lines.forEach(({ label, colour, dashes }, index) => {
    const y = frame.height + 14 + index * row
    paper.lineWidth = 2.5
    stroke(paper, colour, [[LEFT, y], [LEFT + 22, y]], dashes)
    paper.fillStyle = look.ink
    paper.textAlign = 'left'
    paper.fillText(label, LEFT + 32, y + 4)
  })
  return new Promise((resolve, reject) =>
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error('the browser made no picture'))), 'image/png'),
  )
}

function axes(paper: CanvasRenderingContext2D, scale: Scale, look: Look): void {
  const { width, height } = scale.frame
  const floor = height - BOTTOM
  paper.textBaseline = 'middle'
  paper.textAlign = 'right'
  const ys = scale.sight.isLog ? powers(...scale.y) : ticks(...scale.y, Math.max(2, height / 42))
  for (const [index, label] of labels(scale.sight.isShare ? ys.map((y) => 100 * y) : ys).entries()) {
    const at = Math.round(scale.atY(ys[index]!)) + 0.5
    stroke(paper, look.grid, [[LEFT, at], [width - RIGHT, at]])
    paper.fillStyle = look.faint
    paper.fillText(label, LEFT - 7, at, LEFT - 9)
  }
  paper.textAlign = 'center'
  const xs = ticks(...scale.x, Math.max(2, width / 72), scale.sight.isWhole)
  for (const [index, label] of labels(xs).entries()) {
    const at = Math.round(scale.atX(xs[index]!)) + 0.5
    stroke(paper, look.grid, [[at, TOP], [at, floor]])
    paper.fillStyle = look.faint
    paper.fillText(label, Math.min(at, width - 1 - paper.measureText(label).width / 2), floor + 13)
  }
}

function area(paper: CanvasRenderingContext2D, { band, colour }: Line, scale: Scale): void {
  if (!band || band.length === 0) return
  paper.globalAlpha = 0.16
  paper.fillStyle = colour
  paper.beginPath()
  for (const [x, , high] of band) paper.lineTo(scale.atX(x), scale.atY(high))
  for (const [x, low] of band.toReversed()) paper.lineTo(scale.atX(x), scale.atY(low))
  paper.fill()
  paper.globalAlpha = 1
}

function curve(paper: CanvasRenderingContext2D, { points, colour, dashes }: Line, scale: Scale): void {
  const shown = scale.seen(points)
  const isDense = shown.length > scale.frame.width
  paper.lineWidth = isDense ? 1.25 : 2
  paper.lineJoin = isDense ? 'bevel' : 'round'
  paper.fillStyle = colour
  for (const part of unbroken(shown, scale.sight.isLog)) {
    const places = part.map(([x, y]): [number, number] => [scale.atX(x), scale.atY(y)])
    if (isDense && travel(places) > STEEP * scale.frame.width) bars(paper, places, dashes)
    else stroke(paper, colour, isDense ? reduced(places) : places, dashes)
    if (shown.length <= MANY_POINTS || places.length === 1) for (const [x, y] of places) dot(paper, x, y, 2.5)
  }
}

/** The stretches of a line that are known: what is unknown between two values is no line from one to the other. */
export function unbroken(points: Line['points'], isLog = false): [x: number, y: number][][] {
  const isKnown = (y: number | null): y is number => y !== null && (!isLog || y > 0)
  if (points.every(([, y]) => isKnown(y))) return points.length > 0 ? [points as [number, number][]] : []
  const parts: [number, number][][] = [[]]
  for (const [x, y] of points) {
    if (!isKnown(y)) parts.push([])
    else parts.at(-1)!.push([x, y])
  }
  return parts.filter((part) => part.length > 0)
}

/** The first, lowest, highest and last place in each column of pixels, in order: a line through them covers what a line through all would. */
export function reduced(places: [x: number, y: number][]): [x: number, y: number][] {
  const kept: [number, number][] = []
  for (let from = 0, to = 0; from < places.length; from = to) {
    const column = Math.floor(places[from]![0])
    let [low, high] = [from, from]
    for (to = from; to < places.length && Math.floor(places[to]![0]) === column; to++) {
      if (places[to]![1] < places[low]![1]) low = to
      if (places[to]![1] > places[high]![1]) high = to
    }
    for (const at of [...new Set([from, low, high, to - 1])].sort((a, b) => a - b)) kept.push(places[at]!)
  }
  return kept
}

function travel(places: [x: number, y: number][]): number {
  let sum = 0
  for (let at = 1; at < places.length; at++) sum += Math.abs(places[at]![1] - places[at - 1]![1])
  return sum
}

/** One bar a column of pixels, from the line's lowest to its highest place there, which it enters where it left the column before. */
function bars(paper: CanvasRenderingContext2D, places: [x: number, y: number][], dashes: number[]): void {
  const period = dashes.reduce((sum, length) => sum + length, 0)
  const isGap = (column: number): boolean => {
    let left = period > 0 ? column % period : 0
    const at = dashes.findIndex((length) => (left -= length) < 0)
    return at % 2 === 1
  }
  for (let at = 0; at < places.length; ) {
    const column = Math.floor(places[at]![0])
    let low = places[Math.max(0, at - 1)]![1]
    let high = low
    for (; at < places.length && Math.floor(places[at]![0]) === column; at++) {
      low = Math.min(low, places[at]![1])
      high = Math.max(high, places[at]![1])
    }
    if (period === 0 || !isGap(column)) paper.fillRect(column, low - 0.6, 1, high - low + 1.2)
  }
}

function stroke(paper: CanvasRenderingContext2D, colour: string, points: [number, number][], dashes: number[] = []): void {
  paper.strokeStyle = colour
  paper.setLineDash(dashes)
  paper.beginPath()
  for (const [x, y] of points) paper.lineTo(x, y)
  paper.stroke()
}

function dot(paper: CanvasRenderingContext2D, x: number, y: number, radius: number): void {
  paper.beginPath()
  paper.arc(x, y, radius, 0, 2 * Math.PI)
  paper.fill()
}
