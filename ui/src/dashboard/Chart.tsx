/** One chart: its curves, the values under the pointer, and its downloads. */

import { useEffect, useMemo, useRef, useState } from 'preact/hooks'
import uPlot from 'uplot'

import { dark } from '../state/preferences'
import { useStore } from '../state/store'
import type { Axis } from '../state/place'
import { number } from '../text/format'
import { t } from '../text/words'
import { table, type ChartKind, type Curve } from './charts'
import { csv } from './csv'
import { download } from './download'
import { colourOf, dashesOf, HELD_OUT_DASHES } from './palette'
import { picture } from './picture'

const HEIGHT = 190
/** Charts of one key show one place at a time. */
const SYNC = 'astune'

interface Props {
  kind: ChartKind
  all: Curve[]
  axis: Axis
  /** Names of the runs on show, short enough to tell them apart. */
  names: string[]
}

export function Chart({ kind, all, axis, names }: Props) {
  const holder = useRef<HTMLDivElement>(null)
  const plot = useRef<uPlot | null>(null)
  const [at, setAt] = useState<number | null>(null)
  const isDark = useStore(dark)
  const data = useMemo(() => table(all), [all])
  const shape = `${all.map((curve) => `${curve.label} ${curve.run} ${curve.part} ${curve.split}`).join('|')} ${axis} ${isDark}`
  const title = t(kind.title)
  const labels = all.map((curve) => labelOf(curve, kind, names))

  useEffect(() => {
    const element = holder.current
    if (!element || all.length === 0) return
    const made = new uPlot(options(kind, all, axis, isDark, element.clientWidth, setAt), data, element)
    plot.current = made
    const resized = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: HEIGHT }))
    resized.observe(element)
    return () => {
      resized.disconnect()
      made.destroy()
      plot.current = null
    }
  }, [shape])
  useEffect(() => plot.current?.setData(data), [data])

  const index = at ?? lastIndex(data)
  return (
    <figure class="chart" data-chart={kind.key}>
      <figcaption>
        <strong>{title}</strong>
        {kind.unit && <span class="faint"> {t(kind.unit)}</span>}
        {kind.parts && names.length > 1 && <span class="faint"> {t('of_run', { run: names[0] ?? '' })}</span>}
        {all.length > 0 && (
          <span class="chart-tools">
            <button
              class="quiet"
              aria-label={t('download_png', { chart: title })}
              title={t('download_png', { chart: title })}
              onClick={() => plot.current && picture(plot.current, title, legend(all, labels, isDark), isDark).then((blob) => download(`${kind.key}.png`, blob))}
            >
              PNG
            </button>
            <button
              class="quiet"
              aria-label={t('download_csv', { chart: title })}
              title={t('download_csv', { chart: title })}
              onClick={() => download(`${kind.key}.csv`, new Blob([csv(axis === 'step' ? 'step' : 'minutes', labels, all)], { type: 'text/csv' }))}
            >
              CSV
            </button>
          </span>
        )}
      </figcaption>
      {all.length === 0 ? (
        <p class="faint chart-none">{t('not_measured')}</p>
      ) : (
        <>
          <div class="plot" ref={holder} role="img" aria-label={`${title}: ${labels.join(', ')}`} />
          <ul class="values-line">
            <li class="faint">{index === null ? '' : `${axis === 'step' ? t('step') : t('minutes')} ${number(data[0][index])}`}</li>
            {all.map((curve, column) => (
              <li key={column}>
                <Swatch colour={curveColour(curve, kind, isDark)} dashed={curve.split === 'validation'} /> {labels[column]}{' '}
                <b>{number(index === null ? null : valueAt(data[column + 1]!, index))}</b>
              </li>
            ))}
          </ul>
        </>
      )}
    </figure>
  )
}

export function Swatch({ colour, dashed }: { colour: string; dashed: boolean }) {
  return (
    <svg class="swatch" width="16" height="8" aria-hidden="true">
      <path d="M0 4H16" stroke={colour} stroke-width="2.5" stroke-dasharray={dashed ? '4 3' : undefined} />
    </svg>
  )
}

function options(kind: ChartKind, all: Curve[], axis: Axis, isDark: boolean, width: number, onPlace: (index: number | null) => void): uPlot.Options {
  const ink = isDark ? '#9aa4b2' : '#5b6470'
  const grid = { stroke: isDark ? '#262c36' : '#e8eaee', width: 1 }
  const font = '11px ui-sans-serif, system-ui, sans-serif'
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    padding: [8, 8, 0, 0],
    cursor: { sync: { key: SYNC }, points: { size: 7 }, drag: { x: true, y: false } },
    hooks: { setCursor: [(self) => onPlace(self.cursor.idx ?? null)] },
    scales: {
      x: { time: false },
      y: { range: (_self, least, greatest) => bounds(least, greatest, kind.fromZero ?? false) },
    },
    axes: [
      { stroke: ink, grid, ticks: grid, font, size: 28, values: (_self, places) => places.map((place) => (axis === 'step' && !Number.isInteger(place) ? '' : number(place))) },
      { stroke: ink, grid, ticks: grid, font, size: 52, values: (_self, places) => places.map(number) },
    ],
    series: [
      {},
      ...all.map((curve): uPlot.Series => {
        const colour = curveColour(curve, kind, isDark)
        const dash = kind.parts ? dashesOf(curve.part) : curve.split === 'validation' ? HELD_OUT_DASHES : dashesOf(curve.run)
        return { stroke: colour, width: 2, dash, spanGaps: true, points: { show: curve.points.length < 40, size: 5, fill: colour } }
      }),
    ],
  }
}

/** A scale that holds all values with some air, and the zero where it is asked for. */
export function bounds(least: number | null, greatest: number | null, fromZero: boolean): [number, number] {
  if (least === null || greatest === null) return [0, 1]
  const low = fromZero ? Math.min(0, least) : least
  const air = (greatest - low || Math.abs(greatest) || 1) * 0.08
  return [fromZero && low === 0 ? 0 : low - air, greatest + air]
}

function curveColour(curve: Curve, kind: ChartKind, isDark: boolean): string {
  return colourOf(kind.parts ? curve.part : curve.run, isDark)
}

function labelOf(curve: Curve, kind: ChartKind, names: string[]): string {
  if (kind.parts) return curve.label
  const split = kind.metrics.length > 1 ? t(curve.split) : ''
  const run = names.length > 1 ? (names[curve.run] ?? '') : ''
  return [run, split].filter((word) => word !== '').join(' · ') || t(curve.split)
}

function legend(all: Curve[], labels: string[], isDark: boolean): { label: string; colour: string; dashed: boolean }[] {
  return all.map((curve, index) => ({
    label: labels[index] ?? '',
    colour: colourOf(curve.part || curve.run, isDark),
    dashed: curve.split === 'validation',
  }))
}

function lastIndex(data: [number[], ...unknown[]]): number | null {
  return data[0].length > 0 ? data[0].length - 1 : null
}

/** The value there, or the last one before it: held-out values are not measured at every step. */
function valueAt(values: (number | null | undefined)[], index: number): number | null {
  for (let at = index; at >= 0; at--) if (values[at] !== undefined && values[at] !== null) return values[at] ?? null
  return null
}
