/** One chart: its curves, the values under the pointer, and its downloads. */

import { useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks'

import { dark } from '../state/preferences'
import { afterFrame } from '../state/later'
import { go, place, usePlace, type Axis } from '../state/place'
import { Store, useStore } from '../state/store'
import { number, percent } from '../text/format'
import { term } from '../text/terms'
import { t } from '../text/translate'
import type { Word } from '../text/words'
import type { ChartKind, Curve } from './charts'
import { csv } from './csv'
import { download } from './download'
import { colourOf, dashesOf, HELD_OUT_DASHES } from './palette'
import { DARK, draw, LIGHT, mark, picture, Scale, pointAt, type Line, type Sight } from './plot'

const HEIGHT = 190
/** Pixels from which on a move with the button down chooses a part of the axis. */
const DRAGGED = 5
/** What a place on an axis is. */
export const UNITS: { [axis in Axis]: Word } = { step: 'step', time: 'minutes', tokens: 'thousand_tokens' }
/** The x that the reader points at, in whichever chart: all charts show it. */
const pointed = new Store<number | null>(null)

interface Props {
  kind: ChartKind
  all: Curve[]
  axis: Axis
  /** Names of the runs on show, short enough to tell them apart. */
  names: string[]
  /** Whether it is drawn at once: others wait until what is in sight has been painted. */
  isFirst: boolean
}

export function Chart({ kind, all, axis, names, isFirst }: Props) {
  const isDark = useStore(dark)
  const { from, to, log, axis: chosen } = usePlace()
  const { title, key } = kind
  const isLog = log.includes(key)
  const lines = useMemo(() => all.map((curve) => lineOf(curve, kind, names, isDark)), [all, names, isDark, title])
  const sight = useMemo(
    (): Sight => ({ fromZero: kind.fromZero, isShare: kind.unit === '%', isLog, isWhole: axis === 'step', from: axis === chosen ? edge(from) : null, to: axis === chosen ? edge(to) : null }),
    [kind.fromZero, kind.unit, isLog, axis, chosen, from, to],
  )
  const savePicture = async (): Promise<void> => download(`${fileOf(kind)}.png`, await picture(`${kind.unit ? `${title} (${term(kind.unit)})` : title} · ${t(UNITS[axis])}`, lines, sight, isDark ? DARK : LIGHT))
  const saveTable = (): void => download(`${fileOf(kind)}.csv`, new Blob([csv(axis === 'step' ? 'step' : t(UNITS[axis]), lines)], { type: 'text/csv' }))
  const toggleLog = (): void => go({ log: isLog ? log.filter((each) => each !== key) : [...log, key] }, { replace: true })
  return (
    <figure class="chart" data-chart={key}>
      <figcaption>
        <Title kind={kind} />
        {kind.unit && kind.unit !== title.toLowerCase() && <span class="faint"> {term(kind.unit)}</span>}
        {kind.parts && names.length > 1 && <span class="faint"> {t('of_run', { run: names[0] ?? '' })}</span>}
        {lines.length > 0 && (
          <span class="chart-tools">
            <Tool name={t('log')} says={t('log_axis', { chart: title })} isOn={isLog} onClick={toggleLog} />
            <Tool name="PNG" says={t('download_png', { chart: title })} onClick={savePicture} />
            <Tool name="CSV" says={t('download_csv', { chart: title })} onClick={saveTable} />
          </span>
        )}
      </figcaption>
      {lines.length === 0 ? (
        <p class="faint chart-none">{t(axis === 'tokens' ? 'no_tokens' : 'not_measured')}</p>
      ) : (
        <Plot title={title} lines={lines} sight={sight} axis={axis} isDark={isDark} isFirst={isFirst} />
      )}
    </figure>
  )
}

/** A number that stands in the address; null where there is none. */
function edge(text: string): number | null {
  return text.trim() === '' || !Number.isFinite(Number(text)) ? null : Number(text)
}

/** What the metric means is shown while the pointer, or the keyboard's focus, is on its title. */
function Title({ kind }: { kind: ChartKind }) {
  const id = `what-${fileOf(kind)}`
  const name = kind.metrics[0]?.name
  return (
    <span class="chart-title">
      <strong tabIndex={0} aria-describedby={id}>
        {kind.title}
      </strong>
      <span class="chart-what" role="tooltip" id={id}>
        {kind.meaning}
        {name && <code>{name}</code>}
      </span>
    </span>
  )
}

/** The chart's key where a name of a file is needed. */
function fileOf({ key }: ChartKind): string {
  return key.replace(/[^\w.-]+/g, '-')
}

function Tool({ name, says, isOn, onClick }: { name: string; says: string; isOn?: boolean; onClick: () => void }) {
  return (
    <button class="quiet" aria-label={says} title={says} aria-pressed={isOn} onClick={onClick}>
      {name}
    </button>
  )
}

interface PlotProps {
  title: string
  lines: Line[]
  sight: Sight
  axis: Axis
  isDark: boolean
  isFirst: boolean
}

function Plot({ title, lines, sight, axis, isDark, isFirst }: PlotProps) {
  const canvas = useRef<HTMLCanvasElement>(null)
  const scale = useRef<Scale | null>(null)
  /** The chart without what the reader points at, once it was pointed at. */
  const bare = useRef<HTMLCanvasElement | null>(null)
  const [width, setWidth] = useState(0)
  const [chosen, setChosen] = useState<[number, number] | null>(null)
  const cursor = useStore(pointed)
  const isPointed = cursor !== null
  const xs = useMemo(() => (isPointed ? places(lines) : []), [lines, isPointed])
  const shown = isPointed ? nearest(xs, cursor) : null

  useLayoutEffect(() => {
    const element = canvas.current!
    const measure = (): void => setWidth(element.parentElement!.clientWidth)
    measure()
    const resized = new ResizeObserver(measure)
    resized.observe(element.parentElement!)
    return () => resized.disconnect()
  }, [])
  useLayoutEffect(() => {
    if (width === 0) return
    const paint = (): void => {
      const element = canvas.current!
      const ratio = devicePixelRatio || 1
      element.width = Math.round(width * ratio)
      element.height = Math.round(HEIGHT * ratio)
      const paper = element.getContext('2d')!
      paper.scale(ratio, ratio)
      scale.current = new Scale(lines, sight, { width, height: HEIGHT })
      bare.current = null
      draw(paper, lines, scale.current, isDark ? DARK : LIGHT)
    }
    if (isFirst) return paint()
    return afterFrame(paint)
  }, [lines, width, isDark, sight, isFirst])
  useLayoutEffect(() => {
    const paper = canvas.current!.getContext('2d')!
    if (!scale.current || (shown === null && chosen === null && !bare.current)) return
    bare.current ??= copyOf(canvas.current!)
    paper.save()
    paper.resetTransform()
    paper.clearRect(0, 0, bare.current.width, bare.current.height)
    paper.drawImage(bare.current, 0, 0)
    paper.restore()
    mark(paper, lines, scale.current, isDark ? DARK : LIGHT, shown, chosen)
  }, [lines, width, isDark, sight, shown, chosen])

  const point = (event: MouseEvent): void => {
    if (!scale.current) return
    const at = scale.current.xAt(event.offsetX)
    pointed.set(nearest(isPointed ? xs : places(lines), at))
    if (chosen) setChosen([chosen[0], at])
  }
  const begin = (event: MouseEvent): void => {
    if (scale.current && event.button === 0) setChosen([scale.current.xAt(event.offsetX), scale.current.xAt(event.offsetX)])
  }
  const end = (): void => {
    const [from, to] = [...(chosen ?? [0, 0])].sort((a, b) => a - b) as [number, number]
    setChosen(null)
    if (scale.current && scale.current.atX(to) - scale.current.atX(from) > DRAGGED) show(from, to, sight.isWhole)
  }
  const leave = (): void => {
    pointed.set(null)
    setChosen(null)
  }
  const openStep = (): void => {
    if (axis === 'step' && shown !== null) go({ view: 'episodes', split: '', step: String(shown), id: '' })
  }
  const at = shown ?? lastOf(lines, sight.to)
  return (
    <>
      <div class="plot">
        <canvas
          ref={canvas}
          role="img"
          aria-label={`${title}: ${lines.map(({ label }) => label).join(', ')}`}
          onMouseMove={point}
          onMouseDown={begin}
          onMouseUp={end}
          onMouseLeave={leave}
          onDblClick={openStep}
        />
      </div>
      <ul class="values-line">
        <li class="faint">
          {t(UNITS[axis])} {number(at)}
        </li>
        {lines.map((line, index) => (
          <li key={index} title={line.label}>
            <Swatch colour={line.colour} dashed={line.dashes.length > 0} /> {line.short} <Value line={line} at={at} isShare={sight.isShare} />
          </li>
        ))}
      </ul>
    </>
  )
}

/** Shows that part of the axis in all charts. */
function show(from: number, to: number, isWhole: boolean): void {
  const written = (x: number): string => (isWhole ? String(Math.round(x)) : String(Number(x.toPrecision(4))))
  if (written(from) !== written(to)) go({ from: written(from), to: written(to) }, { replace: place.value.from !== '' || place.value.to !== '' })
}

function copyOf(canvas: HTMLCanvasElement): HTMLCanvasElement {
  const copy = document.createElement('canvas')
  copy.width = canvas.width
  copy.height = canvas.height
  copy.getContext('2d')!.drawImage(canvas, 0, 0)
  return copy
}

/** The last place of a line that is not beyond the axis. */
function lastOf(lines: Line[], to: number | null): number | null {
  const ends = lines.flatMap(({ points }) => points.at(-1)?.[0] ?? [])
  return ends.length === 0 ? null : Math.min(Math.max(...ends), to ?? Infinity)
}

/** With its own place where that is not the one that is pointed at, and how many runs a mean is of. */
function Value({ line: { points, counts }, at, isShare }: { line: Line; at: number | null; isShare: boolean }) {
  const point = at === null ? null : pointAt(points, at)
  const count = point && counts?.[points.indexOf(point)]
  return (
    <>
      <b>{(isShare ? percent : number)(point?.[1])}</b>
      {point && point[0] !== at && <span class="faint"> ({number(point[0])})</span>}
      {count && <span class="faint"> {t('mean_of', { n: count })}</span>}
    </>
  )
}

export function Swatch({ colour, dashed }: { colour: string; dashed: boolean }) {
  return (
    <svg class="swatch" width="16" height="8" aria-hidden="true">
      <path d="M0 4H16" stroke={colour} stroke-width="2.5" stroke-dasharray={dashed ? '4 3' : undefined} />
    </svg>
  )
}

function lineOf(curve: Curve, kind: ChartKind, names: string[], isDark: boolean): Line {
  const number = kind.parts ? curve.part : curve.run
  const split = kind.metrics.length > 1 ? t(curve.split) : ''
  const run = names.length > 1 ? (names[curve.run] ?? '') : ''
  return {
    short: kind.parts ? term(curve.label) : names.length > 1 ? '' : split || t(curve.split),
    label: kind.parts ? term(curve.label) : [run, split].filter((word) => word !== '').join(' · ') || t(curve.split),
    colour: colourOf(number, isDark),
    dashes: curve.split === 'validation' ? HELD_OUT_DASHES : dashesOf(number),
    points: curve.points,
    band: curve.band,
    counts: curve.counts,
  }
}

/** Where lines have points, ascending. */
function places(lines: Line[]): number[] {
  const found = new Set<number>()
  for (const { points } of lines) for (const [x] of points) found.add(x)
  return [...found].sort((a, b) => a - b)
}

/** The nearest of ascending numbers; null where there are none. */
export function nearest(numbers: number[], value: number): number | null {
  let best: number | null = null
  for (const each of numbers) if (best === null || Math.abs(each - value) < Math.abs(best - value)) best = each
  return best
}
