/** One chart: its curves, the values under the pointer, and its downloads. */

import { useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks'

import { dark } from '../state/preferences'
import { go, type Axis } from '../state/place'
import { Store, useStore } from '../state/store'
import { number } from '../text/format'
import { term } from '../text/terms'
import { t } from '../text/translate'
import type { ChartKind, Curve } from './charts'
import { csv } from './csv'
import { download } from './download'
import { colourOf, dashesOf, HELD_OUT_DASHES } from './palette'
import { DARK, draw, LIGHT, picture, Scale, pointAt, type Line } from './plot'

const HEIGHT = 190
/** The x that the reader points at, in whichever chart: all charts show it. */
const pointed = new Store<number | null>(null)

interface Props {
  kind: ChartKind
  all: Curve[]
  axis: Axis
  /** Names of the runs on show, short enough to tell them apart. */
  names: string[]
}

export function Chart({ kind, all, axis, names }: Props) {
  const isDark = useStore(dark)
  const { title } = kind
  const lines = useMemo(() => all.map((curve) => lineOf(curve, kind, names, isDark)), [all, names, isDark, title])
  const wholeX = axis === 'step'
  const savePicture = async (): Promise<void> =>
    download(`${fileOf(kind)}.png`, await picture(title, lines, kind.fromZero, wholeX, isDark ? DARK : LIGHT))
  const saveTable = (): void => download(`${fileOf(kind)}.csv`, new Blob([csv(wholeX ? 'step' : 'minutes', lines)], { type: 'text/csv' }))
  return (
    <figure class="chart" data-chart={kind.key}>
      <figcaption>
        <Title kind={kind} />
        {kind.unit && <span class="faint"> {term(kind.unit)}</span>}
        {kind.parts && names.length > 1 && <span class="faint"> {t('of_run', { run: names[0] ?? '' })}</span>}
        {lines.length > 0 && (
          <span class="chart-tools">
            <Tool name="PNG" says={t('download_png', { chart: title })} onClick={savePicture} />
            <Tool name="CSV" says={t('download_csv', { chart: title })} onClick={saveTable} />
          </span>
        )}
      </figcaption>
      {lines.length === 0 ? (
        <p class="faint chart-none">{t('not_measured')}</p>
      ) : (
        <Plot title={title} lines={lines} fromZero={kind.fromZero} wholeX={wholeX} isDark={isDark} />
      )}
    </figure>
  )
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

function Tool({ name, says, onClick }: { name: string; says: string; onClick: () => void }) {
  return (
    <button class="quiet" aria-label={says} title={says} onClick={onClick}>
      {name}
    </button>
  )
}

interface PlotProps {
  title: string
  lines: Line[]
  fromZero: boolean
  wholeX: boolean
  isDark: boolean
}

function Plot({ title, lines, fromZero, wholeX, isDark }: PlotProps) {
  const canvas = useRef<HTMLCanvasElement>(null)
  const scale = useRef<Scale | null>(null)
  const [width, setWidth] = useState(0)
  const cursor = useStore(pointed)
  const xs = useMemo(() => places(lines), [lines])
  const shown = cursor === null ? null : nearest(xs, cursor)

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
    const element = canvas.current!
    const paint = (): void => {
      const ratio = devicePixelRatio || 1
      element.width = Math.round(width * ratio)
      element.height = Math.round(HEIGHT * ratio)
      const paper = element.getContext('2d')!
      paper.scale(ratio, ratio)
      scale.current = new Scale(lines, fromZero, { width, height: HEIGHT })
      draw(paper, lines, scale.current, isDark ? DARK : LIGHT, wholeX, shown)
    }
    if (isInSight(element)) return paint()
    return afterFrame(paint)
  }, [lines, width, shown, isDark, fromZero, wholeX])

  const point = (event: MouseEvent): void => {
    if (scale.current) pointed.set(nearest(xs, scale.current.xAt(event.offsetX)))
  }
  const openStep = (): void => {
    if (wholeX && shown !== null) go({ view: 'episodes', split: '', step: String(shown), id: '' })
  }
  const at = shown ?? xs.at(-1) ?? null
  return (
    <>
      <div class="plot">
        <canvas
          ref={canvas}
          role="img"
          aria-label={`${title}: ${lines.map(({ label }) => label).join(', ')}`}
          onMouseMove={point}
          onMouseLeave={() => pointed.set(null)}
          onDblClick={openStep}
        />
      </div>
      <ul class="values-line">
        <li class="faint">
          {t(wholeX ? 'step' : 'minutes')} {number(at)}
        </li>
        {lines.map((line, index) => (
          <li key={index} title={line.label}>
            <Swatch colour={line.colour} dashed={line.dashes.length > 0} /> {line.short} <Value line={line} at={at} />
          </li>
        ))}
      </ul>
    </>
  )
}

/** With its own place where that is not the one that is pointed at, and how many runs a mean is of. */
function Value({ line: { points, counts }, at }: { line: Line; at: number | null }) {
  const point = at === null ? null : pointAt(points, at)
  const count = point && counts?.[points.indexOf(point)]
  return (
    <>
      <b>{number(point?.[1] ?? null)}</b>
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

function isInSight(element: Element): boolean {
  const { top, bottom } = element.getBoundingClientRect()
  return bottom > 0 && top < innerHeight
}

/** Works when what is in sight has been painted; returns what calls it off. */
function afterFrame(work: () => void): () => void {
  let timer = 0
  const frame = requestAnimationFrame(() => {
    timer = window.setTimeout(work)
  })
  return () => {
    cancelAnimationFrame(frame)
    clearTimeout(timer)
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
