/** Draws curves on a canvas: axes at round numbers, lines and points, and a line where the reader points. */

import { bounds, labels, ticks } from './ticks'

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
  readonly y: [number, number]

  constructor(
    lines: Line[],
    fromZero: boolean,
    readonly frame: Frame,
  ) {
    const ys: number[] = []
    let [from, to] = [Infinity, -Infinity]
    for (const { points, band } of lines) {
      for (const [x, y] of points) {
        from = Math.min(from, x)
        to = Math.max(to, x)
        if (y !== null) ys.push(y)
      }
      for (const [, low, high] of band ?? []) ys.push(low, high)
    }
    this.x = from < to ? [from, to] : [from - 0.5, from + 0.5]
    this.y = bounds(ys, fromZero)
  }

  atX(x: number): number {
    return LEFT + ((x - this.x[0]) / (this.x[1] - this.x[0])) * (this.frame.width - LEFT - RIGHT)
  }

  atY(y: number): number {
    const room = this.frame.height - TOP - BOTTOM
    return TOP + room - ((y - this.y[0]) / (this.y[1] - this.y[0])) * room
  }

  /** The inverse of `atX`. */
  xAt(pixel: number): number {
    return this.x[0] + ((pixel - LEFT) / (this.frame.width - LEFT - RIGHT)) * (this.x[1] - this.x[0])
  }
}

/** The point there, or between two points the one before, for held-out steps are fewer; null before the first and after the last. */
export function pointAt(points: Line['points'], x: number): [x: number, y: number | null] | null {
  const last = points.at(-1)
  return last && x <= last[0] ? (points.findLast(([at]) => at <= x) ?? null) : null
}

/** Draws all of a chart; `cursor` is the x that the reader points at. */
export function draw(paper: CanvasRenderingContext2D, lines: Line[], scale: Scale, look: Look, wholeX: boolean, cursor: number | null): void {
  paper.font = FONT
  paper.lineWidth = 1
  paper.setLineDash([])
  axes(paper, scale, look, wholeX)
  if (cursor !== null) stroke(paper, look.faint, [[scale.atX(cursor), TOP], [scale.atX(cursor), scale.frame.height - BOTTOM]])
  for (const line of lines) area(paper, line, scale)
  for (const line of lines) curve(paper, line, scale, cursor)
}

/** The chart as a picture of its own, with its title and what its lines are. */
export function picture(title: string, lines: Line[], fromZero: boolean, wholeX: boolean, look: Look): Promise<Blob> {
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
  draw(paper, lines, new Scale(lines, fromZero, frame), look, wholeX, null)
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

function axes(paper: CanvasRenderingContext2D, scale: Scale, look: Look, wholeX: boolean): void {
  const { width, height } = scale.frame
  const floor = height - BOTTOM
  paper.textBaseline = 'middle'
  paper.textAlign = 'right'
  const ys = ticks(...scale.y, Math.max(2, height / 42))
  for (const [index, label] of labels(ys).entries()) {
    const at = Math.round(scale.atY(ys[index]!)) + 0.5
    stroke(paper, look.grid, [[LEFT, at], [width - RIGHT, at]])
    paper.fillStyle = look.faint
    paper.fillText(label, LEFT - 7, at, LEFT - 9)
  }
  paper.textAlign = 'center'
  const xs = ticks(...scale.x, Math.max(2, width / 72), wholeX)
  for (const [index, label] of labels(xs).entries()) {
    const at = Math.round(scale.atX(xs[index]!)) + 0.5
    stroke(paper, look.grid, [[at, TOP], [at, floor]])
    paper.fillStyle = look.faint
    paper.fillText(label, Math.min(at, width - RIGHT - 2), floor + 13)
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

function curve(paper: CanvasRenderingContext2D, { points, colour, dashes }: Line, scale: Scale, cursor: number | null): void {
  const isDense = points.length > scale.frame.width
  paper.lineWidth = isDense ? 1.25 : 2
  paper.lineJoin = isDense ? 'bevel' : 'round'
  paper.fillStyle = colour
  for (const part of unbroken(points)) {
    const places = part.map(([x, y]): [number, number] => [scale.atX(x), scale.atY(y)])
    if (isDense && travel(places) > STEEP * scale.frame.width) bars(paper, places, dashes)
    else stroke(paper, colour, isDense ? reduced(places) : places, dashes)
    if (points.length <= MANY_POINTS || places.length === 1) for (const [x, y] of places) dot(paper, x, y, 2.5)
  }
  const pointed = cursor === null ? undefined : points.find(([x]) => x === cursor)
  if (pointed && pointed[1] !== null) dot(paper, scale.atX(pointed[0]), scale.atY(pointed[1]), 4.5)
}

/** The stretches of a line that are known: what is unknown between two values is no line from one to the other. */
export function unbroken(points: Line['points']): [x: number, y: number][][] {
  const parts: [number, number][][] = [[]]
  for (const [x, y] of points) {
    if (y === null) parts.push([])
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
    if (!isGap(column)) paper.fillRect(column, low - 0.6, 1, high - low + 1.2)
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
